"""What the settings say that a run may spend, where nobody else names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from agentq import AgentQ, Budgets
from agentq.app.schedule import load_for
from agentq.core.errors import UsageError
from agentq.engine.plan import Plan
from agentq.tools import CallContext, tool
from agentq.worker.embedded import EmbeddedServer
from tests.support.harness import PRICING, Moody, Rig

FIVE = Budgets(max_steps=5)
ASKED = {"max_steps": 5, "max_tokens": 9_000, "max_usd": "0.05", "max_seconds": 120.0}
Make = Callable[..., AgentQ]


@pytest.fixture
def make(server: EmbeddedServer, namespace: str, redis_client: redis.Redis) -> Iterator[Make]:
    """Makes an app with the agents `named`, with five steps, and `plain`."""
    made: list[AgentQ] = []

    def make(**settings: Any) -> AgentQ:
        app = AgentQ("t", redis_url=server.url, namespace=namespace, pricing=PRICING, **settings)
        made.append(app)
        app.agent("named", model="scripted", budgets=FIVE)
        app.agent("plain", model="scripted")
        return app

    yield make
    for app in made:
        app.store.client.close()
        app.celery.close()


def test_they_hold_for_what_is_not_named_by_an_agent_or_a_submitter(make: Make) -> None:
    app = make(max_steps=7, max_tokens=9_000, max_usd="0.05")
    assert app.submit("named", "go").record().spec.budgets == ASKED
    assert app.submit("plain", "go").record().spec.budgets == ASKED | {"max_steps": 7}
    assert app.submit("plain", "go", budgets=FIVE).record().spec.budgets == ASKED
    free = Budgets(None, None, None)
    unlimited = app.submit("plain", "go", budgets=free).record().spec.budgets
    assert unlimited == {"max_steps": None, "max_tokens": None, "max_usd": None, "max_seconds": 120.0}


def test_they_hold_for_the_rows_of_batches_and_schedules(make: Make) -> None:
    app = make(max_tokens=9_000, max_usd="0.05")
    batch = app.submit_many("plain", [{"input": "one"}, {"input": "two"}], batch="b", budgets=FIVE)
    assert [run.record().spec.budgets for run in batch.runs()] == [ASKED, ASKED]
    schedule = app.schedule("s", "0 8 * * *", [{"input": "one"}], agent="plain", budgets=FIVE)
    with load_for(app, "later", Plan.from_json(schedule.record().spec), lambda what, rows: None) as load:
        assert load.terms.budgets is not None
        assert load.terms.budgets.as_dict() == ASKED


def test_without_them_everything_is_as_budgets_have_it(make: Make) -> None:
    assert make().submit("plain", "go").record().spec.budgets == Budgets().as_dict()


def test_they_hold_for_children_that_are_started_with_budgets(rig: Rig) -> None:
    @tool
    def ask(ctx: CallContext) -> str:
        """Ask somebody."""
        return ctx.spawn("kid", "go", budgets=FIVE)

    rig.run_limits = Budgets(max_tokens=9_000, max_usd="0.05")
    rig.agent(Moody([[("ask", "{}")], "done"]), ask)
    rig.agent(Moody(["done"]), name="kid")
    run = rig.submit()
    rig.drain()
    (child,) = rig.store.runs.children(run)
    assert rig.record(child).spec.budgets == ASKED


@pytest.mark.parametrize(
    "setting, sentence",
    [
        ({"max_steps": "0"}, "max_steps: '0' must be a whole number from 1 to 1000000"),
        ({"max_tokens": "many"}, "max_tokens: 'many' must be a whole number"),
        ({"max_usd": "0"}, "max_usd: 0 leaves no room for any work"),
        ({"max_usd": 0.05}, "money is never a float"),
        ({"max_seconds": -1}, "max_seconds: -1 must be more than 0"),
        ({"max_step": 3}, r"there is no setting 'max_step'.*'max_steps'"),
    ],
)
def test_one_that_cannot_be_is_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        AgentQ("t", **setting)


def test_they_come_from_the_environment_and_the_file_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("home")
    (folder / "agentq.toml").write_text('max_usd = "0.05"\nmax_steps = 3\n')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AGENTQ_MAX_STEPS", "4")
    monkeypatch.setenv("AGENTQ_MAX_SECONDS", "1.5")
    agent = AgentQ("t").agent("a", model="scripted")
    assert agent.budgets == Budgets(max_steps=4, max_usd="0.05", max_seconds=1.5)
