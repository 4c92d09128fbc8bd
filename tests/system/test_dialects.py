"""Runs on real workers that ask real HTTP servers, in each of the three dialects."""

from __future__ import annotations

from signal import SIGKILL
from textwrap import dedent

import pytest

from agentq.core.lifecycle import StopReason
from agentq.provider.catalogue import price_of
from agentq.provider.types import Usage
from agentq.testing import FakeProvider
from agentq.testing.provider import Fault, lognormal
from tests.support.wait import wait_until

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

MODELS = {
    "chat": "openai-chat:gpt-4o-mini",
    "responses": "openai:gpt-5-mini",
    "messages": "anthropic:claude-haiku-4-5",
}
APP = dedent(
    f'''
    """An agent for each dialect; where the provider is, and its key, is in the environment."""
    from agentq import AgentQ, Budgets, tool

    @tool
    def get_order(order_id: str) -> dict:
        """Fetch one order by its id."""
        return {{"id": order_id, "status": "sent"}}

    app = AgentQ("fleet")
    celery = app.celery
    for name, model in {MODELS!r}.items():
        app.agent(name, model=model, tools=[get_order], system="Be brief.",
                  budgets=Budgets(max_usd="1", max_tokens=None, max_seconds=None))
    '''
)


def variables(url: str, key: str = "sk-good") -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": url,
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_API_KEY": key,
        # A proxy of the machine is not asked for what is on this machine.
        "NO_PROXY": "127.0.0.1",
    }


def cost(fleet, entry) -> int:
    """What an entry of the provider's bill comes to by the prices of the catalogue."""
    price = price_of(fleet.app.pricing, entry.model, "anthropic" if entry.dialect == "messages" else "openai")
    assert price is not None
    return price.cost_nano(Usage(entry.input_tokens, entry.output_tokens, entry.cached_tokens))


@pytest.mark.parametrize("agent", MODELS)
def test_a_run_calls_a_tool_and_answers_in_each_dialect(make_fleet, agent):
    """Steps on stderr, the answer on stdout, and the books are what the provider's bill says."""
    with FakeProvider(keys={"sk-good"}) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=2, **variables(provider.url))
        ran = fleet.type("run", agent, "Where is order 7?")
        assert "Where is order 7?" in ran.stdout
        assert "get_order:ok" in ran.stderr
        assert len(provider.bill.entries) == 2
        assert {entry.dialect for entry in provider.bill.entries} == {agent}
        run_id = ran.stderr.split()[0]
        record = fleet.app.run(run_id).record()
        entries = provider.bill.entries
        assert record.tokens == sum(entry.input_tokens + entry.output_tokens for entry in entries)
        assert record.usd_nano == sum(cost(fleet, entry) for entry in entries)
        for entry in provider.bill.entries:
            assert entry.request_id in ran.stderr


@pytest.mark.parametrize("agent", MODELS)
def test_a_wrong_key_ends_the_run_with_exit_code_8_and_one_sentence(make_fleet, agent):
    """It is not tried again, nothing is billed, and the key is nowhere."""
    with FakeProvider(keys={"sk-good"}) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=2, **variables(provider.url, "sk-wrong-and-secret"))
        ran = fleet.type("run", agent, "hello", code=8)
        (line,) = [line for line in ran.stderr.splitlines() if line.startswith("stopped:")]
        assert "provider_auth" in line
        assert "401" in line
        assert "sk-wrong-and-secret" not in ran.stderr + ran.stdout
        assert [entry.status for entry in provider.bill.entries] == [401]
        assert fleet.app.store.ledger.account("global").spent_nano == 0


def test_a_missing_key_and_an_unreachable_host_are_a_sentence_each(make_fleet):
    """Without a key nothing is sent; a host that cannot be reached may be there later."""
    fleet = make_fleet(app=APP, patience_seconds=1)
    gone = FakeProvider()
    gone.start()
    url = gone.url
    gone.stop()
    fleet.start_worker(concurrency=2, **variables(url))
    ran = fleet.type("run", "chat", "hello", code=3)
    assert "Traceback" not in ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("stopped:")]
    assert f"cannot reach {url}" in line
    assert fleet.app.store.ledger.account("global").spent_nano == 0


def test_an_account_without_money_stops_a_run_with_exit_code_8(make_fleet):
    """It is named as what it is, and not tried again."""
    with FakeProvider(faults={"insufficient_quota"}) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=2, **variables(provider.url))
        ran = fleet.type("run", "chat", "hello", code=8)
        assert "provider_quota" in ran.stderr


@pytest.mark.timeout(240)
def test_the_books_cover_the_providers_own_bill_while_workers_are_killed(make_fleet):
    """Calls under way when a worker dies are billed by the provider, and charged here in full."""
    with FakeProvider(latency=lognormal(0.15, 0.5), faults=[Fault("server_error", every=17)]) as provider:
        fleet = make_fleet(app=APP)
        env = variables(provider.url)
        workers = [fleet.start_worker(**env), fleet.start_worker(**env)]
        for agent in MODELS:
            rows = [{"input": f"Where is order {row}?", "custom_id": str(row)} for row in range(40)]
            fleet.app.submit_many(agent, rows, batch=agent)
        batches = [fleet.app.batch(agent) for agent in MODELS]
        for _ in range(3):
            wait_until(
                lambda: len(fleet.held(next(iter(MODELS)))) + len(fleet.held("messages")) > 2, "work", 60
            )
            victim = workers.pop(0)
            victim.signal_group(SIGKILL)
            victim.wait()
            workers.append(fleet.start_worker(**env))
        for batch in batches:
            batch.wait(200)
            for run in batch.runs():
                assert run.record().stop_reason is StopReason.FINISHED, run.record()
        billed = sum(cost(fleet, entry) for entry in provider.bill.entries if entry.status == 200)
        spent = fleet.app.store.ledger.account("global")
        assert spent.spent_nano >= billed > 0
        assert (spent.reserved_nano, spent.escrowed_nano) == (0, 0)
        fleet.type("ledger", "verify")
