"""Who is served when, beside real workers: told by counts, never by the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.bulk import APP, at_work, begins, check_whole, close_gate, open_gate, rows, submit
from tests.support.wait import wait_until

pytest_plugins = ["tests.support.fleet"]
pytestmark = pytest.mark.system

if TYPE_CHECKING:  # pytest imports the plugin itself
    from tests.support.fleet import Fleet

    MakeFleet = Callable[..., Fleet]

CONCURRENCY = 8
WINDOW = 12


@pytest.mark.parametrize("batches", [1, 50])
@pytest.mark.parametrize("single", [False, True], ids=["a batch", "a single run"])
def test_one_run_is_served_behind_a_flood_as_if_it_were_hardly_there(
    make_fleet: MakeFleet, batches: int, single: bool
):
    fleet = make_fleet(app=APP)
    fleet.start_worker(concurrency=CONCURRENCY)
    for number in range(batches):
        submit(fleet, f"a{number}", 2_000 // batches, "a", tenant="flood", seconds=0.02)
    wait_until(lambda: len(begins(fleet)) > 100, "the flood to have begun", 60)
    close_gate(fleet)
    wait_until(lambda: at_work(fleet) == {"a": CONCURRENCY}, "all hands to be full", 60)
    if single:
        metadata = {"of": "b", "row": 0, "seconds": 0.02}
        run = fleet.app.submit("one", "hello", tenant="small", metadata=metadata)
    else:
        (run,) = submit(fleet, "b", 1, "b", tenant="small", seconds=0.02).runs()
    before = Counter(begins(fleet))["a"]
    open_gate(fleet)
    run.result(60)
    served = begins(fleet)
    assert Counter(served[: served.index("b")])["a"] - before <= 2 * WINDOW
    assert before + 2 * WINDOW < 2_000, "there were others to be served before it"


@pytest.mark.parametrize(
    "weights, tokens", [({"two": 2}, {"one": 400, "two": 400}), ({}, {"one": 1_600, "two": 800})]
)
def test_tokens_are_shared_as_the_weights_say(
    make_fleet: MakeFleet, weights: dict[str, int], tokens: dict[str, int]
):
    """Twice the weight, or runs of half the size: twice as many runs, while both have some."""
    fleet = make_fleet(app=APP)
    for tenant, weight in weights.items():
        fleet.type("tenants", "set", tenant, "--weight", str(weight), "--new")
    for tenant, size in tokens.items():
        submit(fleet, tenant, 500, tenant, tenant=tenant, tokens=size)
    fleet.start_worker(concurrency=CONCURRENCY)
    wait_until(lambda: len(begins(fleet)) > 400, "some hundred runs", 90)
    served = Counter(begins(fleet)[40:400])
    assert 1.5 < served["two"] / served["one"] < 2.6, served
    share = fleet.app.store.client.zrange(fleet.app.store.keys.turns(), 0, -1)
    assert set(share) == {"one", "two"}, "both had rows all the time"


def test_a_tenants_batches_take_turns(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    for name in ("large", "late"):
        submit(fleet, name, 300, name)
    fleet.start_worker(concurrency=CONCURRENCY)
    wait_until(lambda: len(begins(fleet)) > 200, "some runs", 90)
    served = Counter(begins(fleet)[:200])
    assert 0.6 < served["large"] / served["late"] < 1.7, served


def test_batches_of_a_higher_priority_go_first_and_so_do_rows(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    for priority in (0, 5, 9):
        submit(fleet, f"p{priority}", 60, f"p{priority}", priority=priority)
    urgent: list[dict[str, Any]] = [row | {"priority": 9} for row in rows(30, "urgent", first=1_000)]
    fleet.app.submit_many("one", rows(60, "calm") + urgent, batch="rows", tenant="other")
    fleet.start_worker(concurrency=CONCURRENCY)
    for name in ("p0", "p5", "p9", "rows"):
        fleet.app.batch(name).wait(100)
    served = [name for name in begins(fleet) if name.startswith("p")]
    # A tenant's very first row begins at once; calls begin in the order of admission, give or take a window.
    for place, name in enumerate(("p9", "p5", "p0")):
        assert Counter(served[60 * place : 60 * (place + 1)])[name] >= 60 - WINDOW, (name, served)
    served = [name for name in begins(fleet) if not name.startswith("p")]
    assert Counter(served[:30])["urgent"] >= 30 - WINDOW


def test_a_batch_that_is_made_more_urgent_is_next_at_once(make_fleet: MakeFleet):
    fleet = make_fleet(app=APP)
    close_gate(fleet)
    fleet.start_worker(concurrency=CONCURRENCY)
    for name in ("first", "second"):
        submit(fleet, name, 100, name)
    wait_until(lambda: len(begins(fleet)) == CONCURRENCY, "all hands to be full", 60)
    queued = fleet.app.store.feeder.in_flight()
    fleet.type("tune", "second", "--priority", "9")
    open_gate(fleet)
    fleet.app.batch("second").wait(60)
    served = begins(fleet)[queued : queued + 80]
    assert Counter(served)["second"] >= 80 - WINDOW
    fleet.app.batch("first").wait(60)
    check_whole(fleet, "first", 100)


def test_of_many_tenants_nobody_is_forgotten(make_fleet: MakeFleet):
    """More than a tick looks at, and far more than there are hands."""
    fleet = make_fleet(app=APP)
    tenants = [f"t{number}" for number in range(60)]
    for tenant in tenants:
        submit(fleet, tenant, 6, tenant, tenant=tenant)
    fleet.start_worker(concurrency=CONCURRENCY)
    for tenant in tenants:
        fleet.app.batch(tenant).wait(90)
    served = Counter(begins(fleet)[: 3 * len(tenants)])
    assert served.keys() == set(tenants)
    assert max(served.values()) <= 5, served
    for tenant in tenants[::20]:
        check_whole(fleet, tenant, 6)
