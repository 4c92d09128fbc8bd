"""A rate limit on real workers: found, shared, shown, and lifted by a person."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from agentq.core.lifecycle import StopReason
from agentq.testing import FakeProvider
from agentq.testing.provider import Limits
from tests.support.wait import wait_until

pytestmark = pytest.mark.system

pytest_plugins = ["tests.support.fleet"]

APP = dedent(
    """
    from agentq import AgentQ, Budgets

    app = AgentQ("fleet")
    celery = app.celery
    app.agent("worker", model="openai-chat:gpt-4o-mini", budgets=Budgets(max_usd="1"))
    """
)


def variables(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-a", "NO_PROXY": "127.0.0.1"}


@pytest.mark.timeout(240)
def test_two_workers_finish_under_a_limit_that_nobody_has_told_them_with_few_refusals(make_fleet):
    """60 calls at 300 a minute: about twelve seconds, and no run fails for a 429."""
    with FakeProvider(limits=Limits(requests_per_minute=300, tokens_per_minute=None)) as provider:
        fleet = make_fleet(app=APP)
        for _ in range(2):
            fleet.start_worker(concurrency=16, **variables(provider.url))
        rows = [{"input": f"row {row}", "custom_id": str(row)} for row in range(60)]
        batch = fleet.app.submit_many("worker", rows, batch="b")
        batch.wait(120)
        assert {run.record().stop_reason for run in batch.runs()} == {StopReason.FINISHED}
        totals = provider.bill.totals
        assert totals.answered == 60
        assert totals.limited <= 20, "who is told to wait makes all wait"
        fleet.check_closed("b")
        (lane,) = json.loads(fleet.type("limits", "list", "--json").stdout)
        assert (lane["account"].split(":")[0], lane["model"]) == ("openai", "gpt-4o-mini")
        assert "gpt-4o-mini" in fleet.type("limits", "list").stdout


@pytest.mark.timeout(240)
def test_an_empty_account_stops_the_fleet_after_one_run_and_a_person_lets_it_go_on(make_fleet):
    """The others wait and say so; once somebody has paid they finish."""
    with FakeProvider(faults={"insufficient_quota"}) as provider:
        fleet = make_fleet(app=APP)
        fleet.start_worker(concurrency=1, **variables(provider.url))
        rows = [{"input": f"row {row}", "custom_id": str(row)} for row in range(10)]
        batch = fleet.app.submit_many("worker", rows, batch="b")
        wait_until(
            lambda: sum("quota again" in (run.record().last_error or "") for run in batch.runs()) == 9,
            "nine runs to wait for quota",
        )
        assert provider.bill.totals.requests == 1
        assert "wait until there is quota again" in fleet.type("status", "b").stdout
        account = json.loads(fleet.type("limits", "list", "--json").stdout)[0]["account"]
        typo = fleet.type("limits", "resume", account[:-1] + "x", code=2)
        assert account in typo.stderr
        provider.faults = ()
        assert "1 account resumed" in fleet.type("limits", "resume", account).stdout
        wait_until(lambda: batch.counts()["ended"] == 10, "the rest to end", 90)
        assert batch.stop_reasons() == {"model_error": 1, "finished": 9}
