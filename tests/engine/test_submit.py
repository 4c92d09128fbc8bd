"""Submission: what cannot end well is refused before it is written, the rest is queued in chunks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from agentq import AgentQ
from agentq.agent import Budgets, LoopDetector, Thread
from agentq.core.errors import ConflictError, UsageError
from agentq.core.records import Opened
from agentq.engine.rows import parse_row
from agentq.engine.submit import draft_run, submit_drafts
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult, Role, Usage
from agentq.store import Store
from agentq.tools import tool
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import (
    CALL_NANO,
    CALL_TOKENS,
    PRICING,
    RETENTION_MS,
    Moody,
    Rig,
    dump,
    make_agent,
    untouched,
)


class Plain:
    """A model without a bound of its own: the general one counts."""

    provider, model = "plain", "scripted-v1"

    def __init__(self) -> None:
        self.caps: list[int] = []

    def complete(self, req: ChatRequest) -> ChatResult:
        self.caps.append(req.max_output_tokens)
        return ChatResult("words", Usage(10, 5), self.provider, self.model)


@tool
def look(id: str) -> str:
    """Look."""
    return id


def draft(agent: Any, task: Any = "do it", **options: Any) -> Any:
    row: dict[str, Any] = {
        k: options.pop(k) for k in ("custom_id", "max_usd", "metadata", "context") if k in options
    }
    return draft_run("a", agent, parse_row({"input": task, **row}), tenant="acme", **options)


@pytest.mark.parametrize(
    "budgets, least",
    [
        (Budgets(max_tokens=CALL_TOKENS - 1), f"max_tokens={CALL_TOKENS}"),
        (Budgets(max_usd="0.001499999"), "0.001500 USD"),
    ],
)
def test_a_run_that_could_not_even_close_is_refused_with_the_least_that_would_do(
    budgets: Budgets, least: str
):
    with pytest.raises(UsageError, match="could not even answer once") as refused:
        draft(make_agent(ScriptedClient(["x"])), budgets=budgets)
    assert least in refused.value.hint


@pytest.mark.parametrize(
    "cap, least",
    [
        ({"batch_tokens": CALL_TOKENS - 1}, f"max_tokens={CALL_TOKENS}"),
        ({"batch_usd": CALL_NANO - 1}, "0.001500 USD"),
    ],
)
def test_a_row_that_could_not_even_close_within_its_batch_is_refused_too(cap: dict[str, Any], least: str):
    """Parked, it would wait for money that the batch cannot have; its custom_id would be used up."""
    agent, row = make_agent(ScriptedClient(["x"])), parse_row({"input": "hi"})
    with pytest.raises(UsageError, match="within the batch's") as refused:
        draft_run("a", agent, row, tenant="acme", batch="b1", **cap)
    assert least in str(refused.value.hint)
    if "batch_usd" in cap:
        assert "the batch's 0.001499999 USD" in str(refused.value), "as it was given, and not rounded"
    enough = {name: amount + 1 for name, amount in cap.items()}
    assert draft_run("a", agent, row, tenant="acme", batch="b1", **enough).spec.batch == "b1"


@pytest.mark.parametrize("amount", ["0", "0.0000000001"])
def test_a_row_with_a_limit_that_no_run_can_have_is_refused_in_words(amount: str):
    with pytest.raises(UsageError, match="max_usd="):
        draft(make_agent(ScriptedClient(["x"])), max_usd=amount)


@pytest.mark.parametrize("unit", ["tokens", "usd"])
def test_the_least_that_would_do_does(rig: Rig, unit: str):
    client = Plain()
    rig.agent(client, look, budgets=Budgets(max_usd=None, max_tokens=None))
    tight = Budgets(max_tokens=1) if unit == "tokens" else Budgets(max_usd="0.000000001", max_tokens=None)
    with pytest.raises(UsageError) as refused:
        rig.submit(budgets=tight)
    least = re.search(r"[\d.]+", refused.value.hint.partition("that would do here is ")[2])
    assert least
    field = {"max_tokens": int(least[0])} if unit == "tokens" else {"max_usd": Decimal(least[0])}
    run = rig.submit(budgets=replace(tight, **field))
    rig.drain()
    record = rig.record(run)
    assert (record.answer, record.stop_detail, client.caps) == ("words", None, [256])
    assert record.stop_reason == ("token_budget" if unit == "tokens" else "cost_budget")
    rig.check()


@pytest.mark.parametrize("least, saved", [(None, 2048 - 256), (1000, 1048), (2048, 0)])
def test_the_least_that_would_do_is_for_the_shortest_answer(least: int | None, saved: int):
    def hint(**options: Any) -> int:
        with pytest.raises(UsageError) as refused:
            draft(make_agent(Plain(), **options), budgets=Budgets(max_tokens=1))
        return int(refused.value.hint.partition("max_tokens=")[2])

    assert hint(min_output_tokens=2048) - hint(min_output_tokens=least) == saved


@pytest.mark.parametrize("limit", ["run", "row", "scope"])
def test_a_limit_in_money_over_a_model_without_a_price_is_refused_unless_allowed(limit: str):
    agent = make_agent(ScriptedClient(["x"]), pricing={}, budgets=Budgets())
    limits: dict[str, dict[str, Any]] = {
        "run": {"budgets": Budgets(max_usd=1)},
        "row": {"max_usd": "1"},
        "scope": {"capped": True},
    }
    options = limits[limit]
    with pytest.raises(UsageError, match="model 'scripted-v1' has no price"):
        draft(agent, **options)
    assert draft(agent, on_unpriced="allow", **options)
    assert draft(agent)
    assert draft(make_agent(ScriptedClient(["x"])), **options)


def test_an_unpriced_run_that_is_allowed_is_counted(rig: Rig):
    rig.agent(Moody(["done"]), look, pricing={}, budgets=Budgets())
    run = rig.submit()
    rig.drain()
    assert (rig.record(run).usd_nano, rig.record(run).tokens) == (0, CALL_TOKENS)
    assert rig.thread(run).unpriced_calls == 1
    rig.check()


def test_the_row_s_limit_goes_before_the_submission_s_and_that_before_the_agent_s():
    agent = make_agent(ScriptedClient(["x"]), budgets=Budgets(max_usd=3, max_steps=7))
    assert draft(agent).spec.budgets["max_usd"] == "3"
    given = draft(agent, budgets=Budgets(max_usd=2))
    assert (given.spec.budgets["max_usd"], given.spec.budgets["max_steps"]) == ("2", 12)
    both = draft(agent, budgets=Budgets(max_usd=2, max_steps=4), max_usd="1.5")
    assert (both.spec.budgets["max_usd"], both.spec.budgets["max_steps"]) == ("1.5", 4)


def test_a_run_has_the_agent_s_thresholds_and_none_of_its_counts():
    detector = LoopDetector(warn_at=4, stop_at=6)
    detector.observe("x:1")
    spec = draft(make_agent(ScriptedClient(["x"]), loop_detector=detector)).spec
    assert spec.detector == LoopDetector(warn_at=4, stop_at=6).as_dict()
    assert draft(make_agent(ScriptedClient(["x"]), loop_detector=None)).spec.detector is None


def test_a_conversation_as_input_is_kept_as_it_is(rig: Rig):
    rig.agent(Moody(["a", "b", "c"]))
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    run = rig.submit(talk)  # type: ignore[arg-type]
    assert [{"role": m.role.value, "content": m.content} for m in rig.thread(run).messages] == talk
    rig.drain()
    assert rig.record(run).answer == "b"


def test_only_new_runs_get_a_message(rig: Rig):
    agent = rig.agent(Moody(["x"]))
    sent: list[tuple[str, int]] = []

    def send(count: int) -> tuple[list[str], list[tuple[str, int]]]:
        drafts = [draft(agent, f"task {n}", custom_id=f"c{n}") for n in range(count)]
        sent.clear()
        answers = submit_drafts(
            drafts,
            store=rig.store,
            dispatch=lambda *hint: sent.append(hint),
            retention_ms=RETENTION_MS,
        )
        new = [(d.run_id, 0) for d, (word, _) in zip(drafts, answers, strict=True) if word == "CREATED"]
        return [word for word, _ in answers], new

    words, new = send(3)
    assert (words, sent) == (["CREATED"] * 3, new)
    words, new = send(5)
    assert (words, sent) == (["EXISTS"] * 3 + ["CREATED"] * 2, new)


def test_the_first_message_is_sent_after_the_runs_are_written(rig: Rig):
    agent = rig.agent(Moody(["x"]))
    drafts = [draft(agent, f"task {n}") for n in range(3)]
    submit_drafts(
        drafts,
        store=rig.store,
        dispatch=lambda run_id, step: rig.submitted.append(str(rig.store.runs.read(run_id) and run_id)),
        retention_ms=RETENTION_MS,
    )
    assert rig.submitted == [d.run_id for d in drafts]
    rig.check()


def test_a_custom_id_with_other_content_is_a_conflict_and_changes_nothing(store: Store, rig: Rig):
    rig.agent(Moody(["x"]))
    for n in range(2):
        rig.submit(f"task {n}", custom_id=f"c{n}")
    with (
        untouched(store),
        pytest.raises(ConflictError, match="'c1' exists in tenant 'acme' with other content"),
    ):
        rig.submit("changed", custom_id="c1")
    assert rig.queue == [(run, 0) for run in rig.submitted]


def test_a_continued_thread_is_a_copy_with_the_new_task_at_its_end(rig: Rig):
    rig.agent(Moody(["first", "second"]))
    first = rig.submit("hello")
    rig.drain()
    thread = rig.thread(first)
    before = thread.as_dict()
    second = rig.submit("and now?", thread=thread)
    rig.drain()
    assert thread.as_dict() == before
    assert [m.content for m in rig.thread(second).messages] == ["hello", "first", "and now?", "second"]
    assert rig.record(second).steps == 1
    assert [m.content for m in rig.thread(first).messages] == ["hello", "first"]
    rig.check()


def test_calls_that_were_left_over_have_a_result_in_the_continued_thread(rig: Rig):
    @tool(side_effect=True, requires_approval=True)
    def pay() -> str:
        """Pay."""
        raise AssertionError("not approved")

    rig.agent(Moody([[("pay", "{}"), ("look", '{"id": "1"}')], "done"]), pay, look)
    waiting = rig.submit("pay")
    rig.drain()
    assert rig.record(waiting).state == "waiting"
    second = rig.submit("never mind", thread=rig.thread(waiting))
    messages = rig.thread(second).messages
    assert [m.role for m in messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.USER]
    asked = [call.id for call in messages[1].tool_calls]
    assert [m.tool_call_id for m in messages[2:4]] == asked
    assert all("not approved" in m.content for m in messages[2:4])
    rig.drain()
    assert rig.record(second).answer == "done"
    rig.check()


def test_a_thread_with_repetitions_is_continued_without_their_count(rig: Rig):
    look_once = [("look", '{"id": "1"}')]
    rig.agent(Moody([look_once, look_once, look_once, "closed", look_once, "done"]), look)
    first = rig.submit()
    rig.drain()
    assert rig.record(first).stop_reason == "loop_detected"
    second = rig.submit("again", thread=rig.thread(first))
    rig.drain()
    assert (rig.record(second).stop_reason, rig.record(second).answer) == ("finished", "done")


def test_an_agent_s_system_text_is_not_in_the_thread(rig: Rig):
    client = Moody(["x"])
    rig.agent(client, system="Be kind.")
    run = rig.submit()
    rig.drain()
    assert client.requests[0].system == "Be kind."
    assert all("kind" not in text for text in dump(rig.store)[f"run:{run}:msgs"][0])


def test_prices_of_the_tests_are_what_they_say():
    assert PRICING["scripted-v1"].cost_nano(Usage(500, 100)) == 1_500_000
    assert Thread().messages == []


@pytest.fixture
def make_app(server: EmbeddedServer, store: Store) -> Callable[[], AgentQ]:
    """An application in this test's namespace, as in a process of its own."""

    def make() -> AgentQ:
        app = AgentQ("t", redis_url=server.url, namespace=store.keys.namespace)
        for name in ("a", "b"):
            app.agent(name, model=ScriptedClient([]))
        return app

    return make


def test_an_empty_tenant_is_refused_and_not_the_default_one(make_app: Callable[[], AgentQ], store: Store):
    """`--tenant "$WHO"` with nothing in WHO must not spend somebody else's money."""
    app = make_app()
    with untouched(store), pytest.raises(UsageError, match="'' cannot be the name of a tenant"):
        app.submit("a", "hello", tenant="")
    with untouched(store), pytest.raises(UsageError, match="'' cannot be the name of a tenant"):
        app.submit_many("a", [{"input": "hello"}], batch="b", tenant="")


def test_a_scope_that_is_named_twice_is_booked_once(
    make_app: Callable[[], AgentQ], store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AGENTQ_SCOPES", "agent,model,agent")
    run = make_app().submit("a", "hello")
    scopes = str(store.client.hget(store.keys.run(run.id), "scopes")).split()
    assert [scope for scope in scopes if scope.startswith(("agent:", "model:"))] == [
        "agent:a",
        "model:scripted-v1",
    ]


def test_the_same_custom_id_for_another_agent_is_other_content(make_app: Callable[[], AgentQ]):
    """It must not give the run, and the answer, of the first one."""
    app = make_app()
    first = app.submit("a", "hello", custom_id="x")
    assert app.submit("a", "hello", custom_id="x").id == first.id
    with pytest.raises(ConflictError, match="'x' exists in tenant 'default' with other content"):
        app.submit("b", "hello", custom_id="x")


def test_two_that_load_one_batch_with_other_content_leave_it_sealed(
    make_app: Callable[[], AgentQ], monkeypatch: pytest.MonkeyPatch
):
    """The one that comes too late to see the conflict must not leave it open for ever."""
    late = make_app()
    open_it = late.store.batches.open

    def open_late(name: str, **options: Any) -> Opened:
        make_app().submit_many("a", [{"input": "hello", "custom_id": "1"}], batch=name)
        return open_it(name, **options)

    monkeypatch.setattr(late.store.batches, "open", open_late)
    with pytest.raises(ConflictError, match="batch 'b1' has '1' with other content"):
        late.submit_many("a", [{"input": "goodbye", "custom_id": "1"}], batch="b1")
    record = late.batch("b1").record()
    assert (record.total, record.sealed) == (1, True)


@pytest.mark.parametrize("tokens", [-1, 2**53])
def test_a_batch_s_tokens_that_cannot_be_counted_are_refused_in_words(
    make_app: Callable[[], AgentQ], store: Store, tokens: int
):
    with untouched(store), pytest.raises(ValueError, match="cannot be counted"):
        make_app().submit_many("a", [{"input": "hello"}], batch="b1", max_tokens=tokens)


def test_a_batch_of_several_agents_is_resumed_in_any_order(make_app: Callable[[], AgentQ]):
    app = make_app()
    rows = [{"input": "hello", "custom_id": name, "agent": name} for name in ("a", "b")]
    assert app.submit_many(None, rows, batch="b1").record().agent == ""
    assert app.submit_many(None, reversed(rows), batch="b1").record().total == 2
    assert app.submit_many(None, rows[1:], batch="b1").record().total == 2
    with pytest.raises(ConflictError, match="other content"):
        app.submit_many("b", [{"input": "hello", "custom_id": "a"}], batch="b1")
