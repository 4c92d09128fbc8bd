"""Lines of results: what the official SDKs' types, taken strictly, read out of each of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from agentq.app.result import result_of
from agentq.cli.resultline import result_line
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import RunRecord, RunSpec
from tests.unit.cli.fakes import result

TYPES: dict[str, Any] = {
    "": ChatCompletion,
    "openai-chat": ChatCompletion,
    "openai": Response,
    "anthropic": Message,
}


def body_of(dialect: str, **changes: Any) -> Any:
    """The body of a result's line, as it is read back from a file by the type of its dialect."""
    line = json.loads(json.dumps(result_line(result("a", **{"dialect": dialect, "model": "m-1"} | changes))))
    assert line["error"] is None
    assert (line["id"], line["custom_id"]) == ("run_a", "a")
    assert line["response"]["status_code"] == 200
    return TYPES[dialect].model_validate_json(json.dumps(line["response"]["body"]), strict=True)


def text_of(body: Any) -> str:
    match body:
        case ChatCompletion():
            return body.choices[0].message.content or ""
        case Response():
            return body.output_text
        case Message():
            return "".join(block.text for block in body.content if block.type == "text")
    raise AssertionError(body)


def tokens_of(body: Any) -> tuple[int, int]:
    usage = body.usage
    if isinstance(body, ChatCompletion):
        return usage.prompt_tokens, usage.completion_tokens
    return usage.input_tokens, usage.output_tokens


def end_of(body: Any) -> Any:
    match body:
        case ChatCompletion():
            return body.choices[0].finish_reason
        case Response():
            return body.status, body.incomplete_details and body.incomplete_details.reason
        case _:
            return body.stop_reason


@pytest.mark.parametrize("dialect", TYPES)
def test_an_answer_is_a_body_of_the_lines_own_dialect(dialect):
    body = body_of(dialect)
    assert text_of(body) == "done"
    assert tokens_of(body) == (1000, 200)
    assert body.model == "m-1"


@pytest.mark.parametrize(
    "dialect, whole, cut",
    [
        ("openai-chat", "stop", "length"),
        ("openai", ("completed", None), ("incomplete", "max_output_tokens")),
        ("anthropic", "end_turn", "max_tokens"),
    ],
)
def test_the_end_is_true_whether_the_answer_or_its_run_was_cut(dialect, whole, cut):
    assert end_of(body_of(dialect)) == whole
    assert end_of(body_of(dialect, is_cut=True)) == cut
    assert end_of(body_of(dialect, stop_reason=StopReason.TOKEN_BUDGET)) == cut


@pytest.mark.parametrize("dialect", TYPES)
def test_an_empty_answer_of_a_finished_run_is_an_answer(dialect):
    assert text_of(body_of(dialect, answer="")) == ""


def test_what_the_provider_sent_goes_before_what_is_made():
    sent = {
        "id": "chatcmpl-1",
        "model": "m-1-2026",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "done"},
                "logprobs": {"content": [{"token": "done", "logprob": -0.5, "top_logprobs": []}]},
                "finish_reason": "stop",
            }
        ],
    }
    body = body_of("openai-chat", body=sent)
    assert (body.id, body.model) == ("chatcmpl-1", "m-1-2026")
    assert body.choices[0].logprobs.content[0].logprob == -0.5
    assert body.object == "chat.completion"  # some servers leave it out


def test_an_old_run_has_its_agents_name_for_a_model():
    assert body_of("", model="").model == "orders"


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────


def failed(reason: StopReason, detail: str | None = None, answer: str = "") -> dict[str, Any]:
    record = RunRecord(
        id="run_a",
        spec=RunSpec("a", custom_id="a", call={"dialect": "anthropic"}),
        state=RunState.ENDED,
        step=0,
        phase="model",
        created_ms=0,
        stop_reason=reason,
        stop_detail=detail,
        answer=answer,
    )
    return result_line(result_of(record))


@pytest.mark.parametrize(
    "reason, detail, retryable",
    [
        (StopReason.MODEL_ERROR, "TransientError: openai/m: gone (HTTP 503)", True),
        (StopReason.MODEL_ERROR, "provider_auth: openai/m: no such key", True),
        (StopReason.MODEL_ERROR, "InvalidRequest: openai/m: no such model", False),
        (StopReason.CONTEXT_OVERFLOW, "ContextOverflow: too long", False),
        (StopReason.COST_BUDGET, "not_admitted", True),
        (StopReason.CANCELLED, None, True),
        (StopReason.APPROVAL_DENIED, None, False),
        (StopReason.ATTEMPTS_EXHAUSTED, None, False),
        (StopReason.LOOP_DETECTED, None, True),
    ],
)
def test_a_failed_row_has_an_error_that_says_whether_a_retry_may_help(reason, detail, retryable):
    line = failed(reason, detail)
    assert line["response"] is None
    assert line["error"] == {
        "code": reason.value,
        "message": detail or reason.value.replace("_", " "),
        "retryable": retryable,
    }


def test_a_failure_that_answered_all_the_same_has_both():
    line = failed(StopReason.LOOP_DETECTED, answer="half of it")
    assert line["error"]["code"] == "loop_detected"
    body = Message.model_validate_json(json.dumps(line["response"]["body"]), strict=True)
    assert text_of(body) == "half of it"
