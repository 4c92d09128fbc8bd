"""Lines of a provider's batch file as runs of one call, which ask a provider on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from agentq.agent import Budgets
from agentq.agent.agent import Agent
from agentq.app.run import Run
from agentq.cli.resultline import result_line
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.engine.onecall import OneCalls
from agentq.engine.rows import Row
from agentq.engine.step import execute_step
from agentq.engine.submit import draft_run, submit_drafts
from agentq.provider.catalogue import built_in, price_of
from agentq.provider.types import Usage
from agentq.testing import FakeProvider, Turn
from agentq.tools import CallContext, tool
from tests.support.harness import RETENTION_MS, Moody, Rig, money, open_batch

TYPES: dict[str, Any] = {"openai-chat": ChatCompletion, "openai": Response, "anthropic": Message}
MODELS = {"openai-chat": "gpt-4o-mini", "openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5"}
CAPS = {"openai-chat": "max_completion_tokens", "openai": "max_output_tokens", "anthropic": "max_tokens"}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """A provider whose address and key are in the environment, as a worker has them."""
    with FakeProvider(keys={"sk-good"}) as provider:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_BASE_URL", provider.url)
            monkeypatch.setenv(f"{name}_API_KEY", "sk-good")
        yield provider


class Line:
    """Submits lines and works on them, as a worker does that knows no agent by their name."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.calls = OneCalls(built_in())
        self.bench = replace(rig.bench, one_call=self.calls.agent)
        self.clients: list[Any] = []

    def submit(
        self, dialect: str, *, batch: str | None = None, usd: str | None = None, **options: Any
    ) -> str:
        """One line; answers its run."""
        call = {"dialect": dialect, "model": MODELS[dialect], "options": {CAPS[dialect]: 100} | options}
        name, agent = f"{dialect}:{MODELS[dialect]}", self.calls.agent(call)
        self.clients.append(agent.client)
        row = Row("Say hi.", agent=name)
        budgets = None if usd is None else Budgets(max_usd=usd)
        draft = draft_run(name, agent, row, tenant="acme", batch=batch, budgets=budgets, on_exhausted="stop")
        draft = replace(draft, spec=replace(draft.spec, call=call))
        dispatch: Callable[[str, int], None] = self.bench.dispatch
        for _ in submit_drafts([draft], store=self.rig.store, dispatch=dispatch, retention_ms=RETENTION_MS):
            pass
        return draft.run_id

    def drain(self) -> None:
        """Work until nothing is left."""
        while self.rig.queue:
            run_id, step = self.rig.queue.pop(0)
            execute_step(run_id, step, bench=self.bench)

    def line(self, run_id: str) -> dict[str, Any]:
        """Its line of results, as it is read back."""
        line: dict[str, Any] = json.loads(json.dumps(result_line(Run(self.rig.store, run_id).result(0))))
        return line


@pytest.fixture
def lines(rig: Rig, provider: FakeProvider) -> Iterator[Line]:
    lines = Line(rig)
    yield lines
    for client in lines.clients:
        client.close()


@pytest.mark.parametrize("dialect", TYPES)
def test_a_line_is_one_call_whose_body_is_what_the_provider_sent(lines, provider, dialect):
    provider.script = ["a short answer"]
    run_id = lines.submit(dialect, top_p=0.5)
    lines.drain()
    record = Run(lines.rig.store, run_id).record()
    assert record.stop_reason is StopReason.FINISHED, record
    (request,) = provider.requests
    assert request.body["top_p"] == 0.5
    assert request.body[CAPS[dialect] if dialect != "openai-chat" else "max_tokens"] == 100
    line = lines.line(run_id)
    body = TYPES[dialect].model_validate_json(json.dumps(line["response"]["body"]), strict=True)
    assert body.model == MODELS[dialect]
    assert line["agentq"]["answer"] == "a short answer"
    assert "a short answer" in body.model_dump_json()
    (entry,) = provider.bill.entries
    price = price_of(built_in(), entry.model, "anthropic" if dialect == "anthropic" else "openai")
    assert price is not None
    assert record.usd_nano == price.cost_nano(Usage(entry.input_tokens, entry.output_tokens))
    said = line["response"]["body"]["usage"]
    assert entry.output_tokens in said.values()
    assert money(lines.rig.store, "global") == {
        "ts": entry.input_tokens + entry.output_tokens,
        "us": record.usd_nano,
    }


@pytest.mark.parametrize(
    "dialect, where, ends",
    [
        ("openai-chat", ("choices", 0, "finish_reason"), ("stop", "length")),
        ("openai", ("status",), ("completed", "incomplete")),
        ("anthropic", ("stop_reason",), ("end_turn", "max_tokens")),
    ],
)
def test_the_end_of_an_answer_is_the_providers(lines, provider, dialect, where, ends):
    for stop, end in zip((None, "length"), ends, strict=True):
        provider.script = [Turn(text="an answer", stop=stop)]
        run_id = lines.submit(dialect)
        lines.drain()
        at = lines.line(run_id)["response"]["body"]
        for key in where:
            at = at[key]
        assert at == end


def test_a_reply_that_asks_for_tools_all_the_same_is_not_followed_by_another_call(rig):
    client = Moody([[("look", "{}")], "never asked for"])
    rig.agent(client, one_call=True)
    run_id = rig.submit(budgets=Budgets(max_steps=12, max_usd="5"))
    rig.drain()
    assert len(client.requests) == 1
    line = result_line(Run(rig.store, run_id).result(0))
    assert (line["agentq"]["stop_reason"], line["response"]) == ("step_budget", None)
    assert line["error"]["code"] == "step_budget"


def test_without_money_no_call_is_made_and_nothing_is_held(lines, provider):
    open_batch(lines.rig.store, "b1", usd=1)
    run_id = lines.submit("openai-chat", batch="b1")
    lines.drain()
    assert provider.requests == []
    line = lines.line(run_id)
    assert line["error"] == {"code": "cost_budget", "message": "not_admitted", "retryable": True}
    assert money(lines.rig.store, "global") == {}


def test_a_limit_that_holds_the_call_alone_is_enough(lines, provider):
    """No closing turn is set aside for: the least that is named is the call's own worst case."""
    with pytest.raises(UsageError) as refused:
        lines.submit("openai-chat", usd="0.000001")
    least = str(refused.value.hint).split()[-2]
    run_id = lines.submit("openai-chat", usd=least)
    lines.drain()
    assert Run(lines.rig.store, run_id).record().stop_reason is StopReason.FINISHED


def test_a_wrong_key_is_an_error_of_the_line(lines, provider, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    run_id = lines.submit("openai")
    lines.drain()
    error = lines.line(run_id)["error"]
    assert error["code"] == "model_error"
    assert error["message"].startswith("provider_auth")
    assert error["retryable"]
    # With the right one, typing `agentq retry` is enough.
    monkeypatch.setenv("OPENAI_API_KEY", "sk-good")
    Run(lines.rig.store, run_id).retry()
    lines.rig.queue.append((run_id, 0))
    lines.drain()
    assert lines.line(run_id)["error"] is None


def test_a_fork_makes_the_call_again(lines, provider):
    run_id = lines.submit("anthropic")
    lines.drain()
    forked = Run(lines.rig.store, run_id).fork(0)
    lines.rig.queue.append((forked.id, 0))
    lines.drain()
    assert forked.record().stop_reason is StopReason.FINISHED
    assert [request.body["max_tokens"] for request in provider.requests] == [100, 100]
    Message.model_validate_json(json.dumps(lines.line(forked.id)["response"]["body"]), strict=True)


def test_a_worker_that_cannot_make_the_call_leaves_it_to_others(lines, provider):
    run_id = lines.submit("openai-chat")

    def refuses(call: Any) -> Agent:
        raise UsageError("no such option here")

    for bench, note in (
        (replace(lines.bench, one_call=refuses), "that can make its call: no such option here"),
        (replace(lines.bench, one_call=None), "that knows agent 'openai-chat:gpt-4o-mini'"),
    ):
        execute_step(run_id, None, bench=bench)
        record = Run(lines.rig.store, run_id).record()
        assert record.state is RunState.QUEUED
        assert note in str(record.last_error)
        lines.rig.store.client.hset(lines.rig.store.keys.run(run_id), "not_before", 1)
    execute_step(run_id, 0, bench=lines.bench)
    assert Run(lines.rig.store, run_id).record().stop_reason is StopReason.FINISHED


def test_a_tool_cannot_start_such_a_run_and_is_told_so(rig, provider):
    refused: list[str] = []

    @tool
    def ask(ctx: CallContext) -> str:
        """Ask a model."""
        try:
            return ctx.spawn("openai-chat:gpt-4o-mini", "hi")
        except UsageError as error:
            refused.append(f"{error} ({error.hint})")
            return "no"

    rig.agent(Moody([[("ask", "{}")], "done"]), ask)
    rig.submit()
    rig.drain()
    assert refused == ["there is no agent 'openai-chat:gpt-4o-mini' (this app has a)"]
