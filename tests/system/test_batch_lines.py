"""Batch files of OpenAI and Anthropic, unchanged, on real workers; official SDKs read their output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from agentq.core.errors import InputError
from agentq.engine.input import read_rows
from agentq.provider.catalogue import price_of
from agentq.provider.types import Usage
from agentq.testing import FakeProvider, Turn

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

PAGE = Path(__file__).parents[2] / "docs" / "batch-files.md"
APP = dedent(
    '''
    """No agent at all: each line is a run of its own model."""
    from agentq import AgentQ

    app = AgentQ("fleet")
    celery = app.celery
    '''
)
TYPES: dict[str, Any] = {"chat": ChatCompletion, "responses": Response, "messages": Message}
MODELS = {"chat": "gpt-4o-mini", "responses": "gpt-5-mini", "messages": "claude-haiku-4-5"}


def line(form: str, number: int) -> dict[str, Any]:
    """A line as the provider's own documentation writes it."""
    told = f"What is {number} and one?"
    custom_id = f"request-{number}"
    if form == "messages":
        params = {
            "model": MODELS[form],
            "max_tokens": 1024,
            "system": "You are a helpful assistant.",
            "temperature": 0.2,
            "messages": [{"role": "user", "content": told}],
        }
        return {"custom_id": custom_id, "params": params}
    if form == "responses":
        asked = {"input": told, "instructions": "You are a helpful assistant.", "max_output_tokens": 1000}
        return {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": MODELS[form], "reasoning": {"effort": "low"}, **asked},
        }
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": told},
    ]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": MODELS[form], "messages": messages, "max_tokens": 1000, "temperature": 0.2},
    }


def write(fleet: Any, form: str, rows: int = 12) -> None:
    """`FORM.jsonl` in the folder where the person types."""
    text = "".join(json.dumps(line(form, number)) + "\n" for number in range(rows))
    (fleet.home / f"{form}.jsonl").write_text(text)


def submit(fleet: Any, form: str, **limits: Any) -> None:
    """Submit `FORM.jsonl`, unchanged and without an agent, as the batch FORM."""
    with fleet.app.load(form, **limits) as load:
        for where, row in read_rows(str(fleet.home / f"{form}.jsonl")):
            load.add(where, row)
        fleet.app.write(load)


def variables(url: str, key: str = "sk-good") -> dict[str, str]:
    """Where the provider is, and the key, in the environment of a worker."""
    found = {f"{name}_BASE_URL": url for name in ("OPENAI", "ANTHROPIC")}
    found |= {f"{name}_API_KEY": key for name in ("OPENAI", "ANTHROPIC")}
    return found | {"NO_PROXY": "127.0.0.1"}


def words(body: Any) -> str:
    """What an answer says."""
    match body:
        case ChatCompletion():
            return body.choices[0].message.content or ""
        case Response():
            return body.output_text
        case _:
            return "".join(block.text for block in body.content if block.type == "text")


@pytest.mark.parametrize("form", TYPES)
def test_a_batch_file_runs_unchanged_and_its_output_is_read_by_the_sdk(make_fleet, form):
    with FakeProvider(keys={"sk-good"}, script=lambda request: f"{request.text} I think so.") as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=4, **variables(provider.url))
        write(fleet, form)
        submit(fleet, form, max_usd="1")
        fleet.type("wait", form)
        fleet.type("results", form, "-o", "out.jsonl")
        found = [json.loads(text) for text in (fleet.home / "out.jsonl").read_text().splitlines()]
        assert sorted(one["custom_id"] for one in found) == sorted(f"request-{n}" for n in range(12))
        for one in found:
            assert one["error"] is None
            assert (one["response"]["status_code"], one["agentq"]["steps"]) == (200, 1)
            body = TYPES[form].model_validate_json(json.dumps(one["response"]["body"]), strict=True)
            number = one["custom_id"].partition("-")[2]
            assert words(body) == f"What is {number} and one? I think so."
            assert body.model == MODELS[form]
        # One request a line, with what the line says, and the books are what the provider's bill says.
        assert len(provider.requests) == 12
        for request in provider.requests:
            if form == "responses":
                assert request.body["reasoning"] == {"effort": "low"}
            else:
                assert request.body["temperature"] == 0.2
        vendor = "anthropic" if form == "messages" else "openai"
        price = price_of(fleet.app.pricing, MODELS[form], vendor)
        assert price is not None
        spent = fleet.app.store.ledger.account(f"batch:{form}").spent_nano
        assert spent == sum(
            price.cost_nano(Usage(entry.input_tokens, entry.output_tokens)) for entry in provider.bill.entries
        )
        fleet.type("ledger", "verify")


def test_all_three_forms_go_into_one_batch_and_a_cut_answer_says_so(make_fleet):
    with FakeProvider(script=[Turn(text="half", stop="length")]) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=4, **variables(provider.url))
        mixed = [line(form, number) for number, form in enumerate(TYPES)]
        (fleet.home / "mixed.jsonl").write_text("".join(json.dumps(one) + "\n" for one in mixed))
        submit(fleet, "mixed")
        fleet.type("wait", "mixed")
        shown = fleet.type("results", "mixed").stdout.splitlines()
        bodies = [json.loads(text)["response"]["body"] for text in shown]
        by_id = dict(zip((json.loads(text)["custom_id"] for text in shown), bodies, strict=True))
        assert by_id["request-0"]["choices"][0]["finish_reason"] == "length"
        assert by_id["request-1"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert by_id["request-2"]["stop_reason"] == "max_tokens"
        # The program on the page reads all three.
        fleet.type("results", "mixed", "-o", "out.jsonl")
        (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        read = subprocess.run(
            [sys.executable, "-c", program], cwd=fleet.home, capture_output=True, text=True, check=False
        )
        assert sorted(read.stdout.splitlines()) == [f"request-{n} half" for n in range(3)], read.stderr


def test_a_worker_with_a_wrong_key_is_exit_code_8_and_an_error_in_the_line(make_fleet):
    with FakeProvider(keys={"sk-good"}) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=2, **variables(provider.url, "sk-wrong-and-secret"))
        write(fleet, "chat", 1)
        submit(fleet, "chat")
        ran = fleet.type("wait", "chat", code=8)
        fleet.type("results", "chat", "-o", "out.jsonl")
        (one,) = [json.loads(text) for text in (fleet.home / "out.jsonl").read_text().splitlines()]
        assert one["response"] is None
        assert one["error"]["code"] == "model_error"
        assert one["error"]["retryable"]
        assert "sk-wrong-and-secret" not in json.dumps(one) + ran.stderr
        assert fleet.app.store.ledger.account("global").spent_nano == 0


def test_a_line_that_cannot_be_run_is_named_and_nothing_is_submitted(make_fleet):
    fleet = make_fleet(app=APP)
    rows = [line("chat", 1), line("chat", 2), line("chat", 3)]
    rows[1]["body"]["service_tier"] = "priority"
    rows[2]["body"]["model"] = "gpt 4"
    (fleet.home / "chat.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(InputError) as refused:
        submit(fleet, "chat")
    second, third = refused.value.problems
    assert "chat.jsonl:2: 'service_tier': \"priority\" has a price of its own" in second
    assert "chat.jsonl:3: 'gpt 4' is not the id of a model" in third
    assert fleet.app.batches() == []
