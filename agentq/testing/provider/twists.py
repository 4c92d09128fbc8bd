"""Faults in answers: what models and servers say that they should not, or in another form."""

# ruff: noqa: ARG001, ARG005 - every fault is called with the same arguments

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentq.testing.provider.demands import IDS_MISTRAL, REASONING_BACK, THOUGHT_BACK, thought_signature
from agentq.testing.provider.known import CHAT, MESSAGES, OPENAI, Known
from agentq.testing.provider.reply import Reply, Said, sign
from agentq.testing.provider.request import Request, text_bytes, tokens_of
from agentq.testing.provider.script import Call, Turn

if TYPE_CHECKING:
    from agentq.testing.provider.fault import Fault

_THOUGHT = "Let me think about this."


# ---- turns


def _thinks(turn: Turn, request: Request, fault: Fault) -> Turn:
    return replace(turn, thinking=turn.thinking or _THOUGHT)


def _calls_despite_none(turn: Turn, request: Request, fault: Fault) -> Turn:
    if turn.calls or not request.forbids_tools:
        return turn
    name = request.tools[0].name if request.tools else "lookup"
    return replace(turn, text="", calls=[Call(name)])


def _empty_call(turn: Turn, request: Request, fault: Fault) -> Turn:
    return replace(turn, calls=[Call("", "")])


def _stops(stop: str, text: str | None = None) -> Callable[[Turn, Request, Fault], Turn]:
    def change(turn: Turn, request: Request, fault: Fault) -> Turn:
        return replace(turn, calls=[], stop=stop, text=turn.text if text is None else text)

    return change


def _cut_with_calls(turn: Turn, request: Request, fault: Fault) -> Turn:
    return replace(turn, stop="length") if turn.calls else turn


# ---- replies


def _arguments(change: Callable[[str], Any]) -> Callable[[Reply, Request, Fault], None]:
    def twist(reply: Reply, request: Request, fault: Fault) -> None:
        for call in reply.calls:
            call.arguments = change(str(call.arguments))

    return twist


def _as_object(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def _truncated(reply: Reply, request: Request, fault: Fault) -> None:
    if reply.calls:
        call = reply.calls[-1]
        call.arguments = str(call.arguments)[: max(1, len(str(call.arguments)) // 2)]
        reply.usage.output = request.output_cap or reply.usage.output


def _ids(make: Callable[[Reply, int], str]) -> Callable[[Reply, Request, Fault], None]:
    def twist(reply: Reply, request: Request, fault: Fault) -> None:
        for i, call in enumerate(reply.calls):
            call.id = make(reply, i)

    return twist


def _reasoning_content(reply: Reply, request: Request, fault: Fault) -> None:
    reply.shows_reasoning = True


def _redacted(reply: Reply, request: Request, fault: Fault) -> None:
    reply.redacted = True


def _signed(home: str) -> Callable[[Reply, Request, Fault], None]:
    def twist(reply: Reply, request: Request, fault: Fault) -> None:
        for call in reply.calls[:1]:
            call.extra["extra_content"] = {home: {"thought_signature": thought_signature(call.id)}}

    return twist


def _stop_with_calls(reply: Reply, request: Request, fault: Fault) -> None:
    if reply.calls:
        reply.stop = "stop"


def _says_stop(reply: Reply, request: Request, fault: Fault) -> None:
    reply.stop = "a_reason_of_tomorrow"


def _cuts_prompt(reply: Reply, request: Request, fault: Fault) -> None:
    reply.usage.input = min(reply.usage.input, fault.tokens)
    reply.usage.cached = min(reply.usage.cached, reply.usage.input)


def _drops_developer(reply: Reply, request: Request, fault: Fault) -> None:
    unread = [message for message in request.body["messages"] if message["role"] == "developer"]
    reply.usage.input = max(1, reply.usage.input - tokens_of(text_bytes(unread)))


def _ignores_cap(reply: Reply, request: Request, fault: Fault) -> None:
    if request.output_cap is not None and "max_completion_tokens" in request.body:
        reply.text = " ".join(["and so on"] * (request.output_cap + 1))
        reply.calls, reply.stop = [], "stop"
        reply.usage.output = tokens_of(len(reply.text))


def _doubled_call(reply: Reply, request: Request, fault: Fault) -> None:
    if reply.calls:
        first = reply.calls[0]
        reply.calls.append(Said(first.id, first.name, first.arguments))


# ---- answers


def _without_usage(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {name: value for name, value in done.items() if name != "usage"}


def _null_usage(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {**done, "usage": None}


def _without_stream_usage(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return _without_usage(done, request, fault) if request.stream else done


def _error_in_200(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    match request.dialect:
        case "messages":
            return {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        case "responses":
            error = {"code": "server_error", "message": "The model failed to generate a response."}
            return {
                **done,
                "status": "failed",
                "error": error,
                "output": [],
                "usage": None,
                "completed_at": None,
            }
    raw = '{"error":{"message":"upstream connect error","type":"upstream"}}'
    return {
        "error": {
            "code": 502,
            "message": "Provider returned error",
            "metadata": {"raw": raw, "provider_name": "Somebody"},
        },
        "user_id": "user_1",
    }


def _null_choices(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {**done, "choices": None}


def _no_choices(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {**done, "choices": []}


def _error_finish(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    choice = {**done["choices"][0], "finish_reason": "error", "native_finish_reason": None}
    choice["error"] = {"code": 502, "message": "Provider disconnected"}
    return {**done, "choices": [choice]}


def _limited_in_200(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {
        "error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "try again later"}}
    }


def _empty_answer(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    match request.dialect:
        case "messages":
            return {**done, "content": []}
        case "responses":
            return {**done, "output": []}
    message = {**done["choices"][0]["message"], "content": "", "tool_calls": None}
    return {**done, "choices": [{**done["choices"][0], "message": message, "finish_reason": "stop"}]}


def _unknown_fields(done: dict[str, Any], request: Request, fault: Fault) -> Any:
    return {**done, "x_new_field": {"of": ["tomorrow"]}}


TWISTS: dict[str, Known] = {
    "thinking": Known(says="the model thinks, also when it was not asked to", turns=_thinks),
    "redacted_thinking": Known(
        says="it thinks, and what it thought is not shown", dialects=MESSAGES, turns=_thinks, twists=_redacted
    ),
    "reasoning_content": Known(
        says="it thinks in `reasoning_content`, which must come back with its calls",
        dialects=CHAT,
        demands=REASONING_BACK,
        turns=_thinks,
        twists=_reasoning_content,
    ),
    "thought_signature": Known(
        says="the first call carries `extra_content.google.thought_signature`, which must come back",
        dialects=CHAT,
        demands=THOUGHT_BACK("google"),
        twists=_signed("google"),
    ),
    "thought_signature_vertex": Known(
        says="the same under `extra_content.vertex`",
        dialects=CHAT,
        demands=THOUGHT_BACK("vertex"),
        twists=_signed("vertex"),
    ),
    "bad_arguments": Known(
        says="arguments that are no JSON", dialects=OPENAI, twists=_arguments(lambda text: text[:-1] + ",,")
    ),
    "truncated_arguments": Known(
        says="arguments cut in the middle, the output exactly at its cap, and no word of it",
        dialects=OPENAI,
        twists=_truncated,
    ),
    "empty_arguments": Known(says='arguments ""', dialects=OPENAI, twists=_arguments(lambda text: "")),
    "dict_arguments": Known(
        says="arguments as an object, not as a text", dialects=CHAT, twists=_arguments(_as_object)
    ),
    "list_arguments": Known(
        says="arguments that are a JSON list", dialects=OPENAI, twists=_arguments(lambda text: "[1]")
    ),
    "cut_with_calls": Known(
        says="cut at the output cap, with calls that happen to parse", turns=_cut_with_calls
    ),
    "stop_with_calls": Known(
        says="calls, but the finish reason is that of an answer",
        dialects=("chat", "messages"),
        twists=_stop_with_calls,
    ),
    "calls_despite_none": Known(
        says="it calls tools that are forbidden, or that it was not offered",
        turns=_calls_despite_none,
        misbehaves=True,
    ),
    "empty_call": Known(
        says="a call without a name and without arguments",
        dialects=OPENAI,
        turns=_empty_call,
        misbehaves=True,
    ),
    "doubled_call": Known(says="a call twice, with the same id", twists=_doubled_call),
    "empty_ids": Known(says='ids of calls are ""', dialects=OPENAI, twists=_ids(lambda reply, i: "")),
    "repeated_ids": Known(
        says="every turn has the ids call_0, call_1, …", twists=_ids(lambda reply, i: f"call_{i}")
    ),
    "long_ids": Known(
        says="ids of calls have 120 characters",
        dialects=OPENAI,
        twists=_ids(lambda reply, i: f"call_{reply.stem}{i:091d}"),
    ),
    "ids_mistral": Known(
        says="ids of calls have nine letters and digits, and must",
        dialects=CHAT,
        demands=IDS_MISTRAL,
        twists=_ids(lambda reply, i: sign(reply.stem, str(i))[:9]),
    ),
    "ignores_cap": Known(
        says="`max_completion_tokens` is ignored, and the answer longer than it",
        dialects=CHAT,
        twists=_ignores_cap,
    ),
    "drops_developer": Known(
        says="messages of the role `developer` are not read", dialects=CHAT, twists=_drops_developer
    ),
    "no_usage": Known(says="the answer has no usage", rewrites=_without_usage),
    "null_usage": Known(says="the usage is null", rewrites=_null_usage),
    "no_stream_usage": Known(
        says="streams have no usage, also when it was asked for", rewrites=_without_stream_usage
    ),
    "error_in_200": Known(
        says="an error in a body with status 200, OpenRouter's in chat", rewrites=_error_in_200
    ),
    "limited_in_200": Known(says="a 429 in a body with status 200", dialects=CHAT, rewrites=_limited_in_200),
    "null_choices": Known(says="status 200, `choices` is null", dialects=CHAT, rewrites=_null_choices),
    "no_choices": Known(says="status 200, `choices` is empty", dialects=CHAT, rewrites=_no_choices),
    "error_finish": Known(says="status 200, finish reason `error`", dialects=CHAT, rewrites=_error_finish),
    "empty_answer": Known(says="status 200, neither text nor calls", rewrites=_empty_answer),
    "unknown_fields": Known(says="a field that nobody knows yet", rewrites=_unknown_fields),
    "cuts_prompt": Known(
        says="the front of the prompt is cut at `tokens`: status 200, few input tokens",
        dialects=CHAT,
        twists=_cuts_prompt,
    ),
    "pause_turn": Known(
        says="stop reason `pause_turn`: to be sent again as it is", dialects=MESSAGES, turns=_stops("pause")
    ),
    "refusal": Known(says="the model refuses to answer", turns=_stops("refusal", "")),
    "content_filter": Known(
        says="a filter has taken the answer", dialects=OPENAI, turns=_stops("filter", "")
    ),
    "window_exceeded": Known(
        says="stop reason `model_context_window_exceeded`", dialects=MESSAGES, turns=_stops("window")
    ),
    "unknown_stop": Known(
        says="a finish reason that nobody knows yet", dialects=("chat", "messages"), twists=_says_stop
    ),
}

WIRES: dict[str, Known] = {
    "no_request_id": Known(says="the answer has no request id", wire="no_request_id"),
    "closed": Known(says="the connection is closed before any byte of the answer", wire="closed"),
    "half_body": Known(says="the connection is closed after half of the body", wire="half"),
    "no_answer": Known(says="nothing comes for `seconds`, then the connection is closed", wire="no_answer"),
    "garbage": Known(says="status 200, and a body that is no JSON", wire="garbage"),
    "empty_body": Known(says="status 200 and no body", wire="empty"),
    "error_in_stream": Known(says="a stream breaks off with an error in it", wire="error_in_stream"),
    "cut_stream": Known(says="a stream breaks off", wire="cut_stream"),
}
