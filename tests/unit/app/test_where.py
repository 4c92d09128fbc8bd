"""The filter that people type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentq.app.where import BATCH_KEYS, CALL_KEYS, RUN_KEYS, Where, is_term, where
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState, StopReason
from agentq.core.records import BatchRecord, PendingCall, RunRecord, RunSpec

HOUR = 3_600_000
RUN = RunRecord(
    id="run_a",
    spec=RunSpec("triage", tenant="acme", batch="july", custom_id="t 1"),
    state=RunState.WAITING,
    step=0,
    phase="tools",
    created_ms=8 * HOUR,
)
ENDED = replace(
    RUN,
    state=RunState.ENDED,
    stop_reason=StopReason.COST_BUDGET,
    stop_scope="batch:july",
    usd_nano=500_000_001,
    tokens=1_200,
    steps=10,
    attempts=2,
    generation=1,
)
CALL = PendingCall("c1", "cancel_order", "{}", "cancel_order:1", 0, 0)


def now() -> int:
    return 10 * HOUR


def made(terms: Any, keys: Any = RUN_KEYS) -> Where:
    return where(terms, keys=keys, now=now)


@pytest.mark.parametrize(
    "terms",
    [
        None,
        "",
        "batch=july tool=cancel_order",
        {"batch": "july", "kind": "approval"},
        ["run=run_a", "tenant=acme state=waiting"],
        "custom_id='t 1' agent=triage",
        "batch:july -tool:other kind!=unknown",
    ],
)
def test_a_call_is_meant_where_all_terms_hold(terms: Any) -> None:
    """Words are quoted as in a shell."""
    assert made(terms, CALL_KEYS).holds_for(RUN, CALL)


@pytest.mark.parametrize(
    "terms",
    [
        "batch=june",
        "batch=july tool=other",
        "kind=unknown",
        "state=parked",
        {"custom_id": "t"},
        "-tool:cancel_order",
        "usd>0",
    ],
)
def test_a_call_is_not_meant_where_one_term_does_not_hold(terms: Any) -> None:
    """One that fails is enough."""
    assert not made(terms, CALL_KEYS).holds_for(RUN, CALL)


@pytest.mark.parametrize(
    "terms, holds",
    [
        ("stop_reason:cost_budget,loop_detected", True),
        ("stop_reason=loop_detected,finished", False),
        ("-stop_reason:loop_detected,finished", True),
        ("stop_reason!=cost_budget", False),
        ("stop_reason:*_budget", True),
        ("stop_scope:batch:july", True),
        ("stop_scope:batch:*", True),
        ("usd>0.5", True),
        ("usd>0.500000001", False),
        ("usd>=0.500000001", True),
        ("usd<0.5", False),
        ("steps>=10 steps<11", True),
        ("steps:9,10", True),
        ("steps!=10", False),
        ("attempts>1", True),
        ("tokens<1000", False),
        ("tokens<=1200", True),
        ("generation:1", True),
        ("age>1h", True),
        ("age<1h", False),
        ("age<1h age>1h", False),
        ("run:run_*", True),
        ("custom_id:t*", True),
        ("custom_id:*1", True),
        ("custom_id:?*", False),
        ("-custom_id:x* -state:queued", True),
    ],
)
def test_signs_lists_and_stars(terms: str, holds: bool) -> None:
    """Money is compared exactly."""
    assert made(terms).holds(ENDED) is holds


def test_a_fact_that_there_is_not_equals_nothing() -> None:
    """A live run has no stop reason, one without a batch is in none, not even in one of an odd name."""
    alone = replace(RUN, spec=RunSpec("triage"))
    assert not made("batch=None").holds(alone)
    assert not made("batch:*").holds(alone)
    assert made("batch!=july").holds(alone)
    assert made("tenant=default").holds(alone)
    assert not made("stop_reason:finished").holds(RUN)
    assert made("-stop_reason:finished").holds(RUN)


def test_a_value_from_a_program_is_meant_as_it_is() -> None:
    """A custom_id may hold anything."""
    odd, plain = (replace(RUN, spec=replace(RUN.spec, custom_id=name)) for name in ("a*,[b", "ab"))
    assert [made({"custom_id": "a*,[b"}).holds(run) for run in (odd, plain)] == [True, False]
    assert [made("custom_id='a*,[b'").holds(run) for run in (odd, plain)] == [True, True]
    assert [made("custom_id:a*").holds(run) for run in (odd, plain)] == [True, True]
    assert not made("custom_id:[a]*").holds(plain)


def test_a_batch_is_meant_by_its_own_keys() -> None:
    """One whose rows name several agents has none."""
    batch = BatchRecord("july", "triage", "acme", 1, 1, True, 8 * HOUR)
    assert made("batch:ju* tenant:acme agent:triage age>1h", BATCH_KEYS).holds_of(batch)
    assert not made("age>3h", BATCH_KEYS).holds_of(batch)
    assert not made("agent:*", BATCH_KEYS).holds_of(replace(batch, agent=""))


@pytest.mark.parametrize(
    "terms, said, hint",
    [
        ("bach=july", r"there is no filter 'bach' \(did you mean 'batch'\?\)", "filters are run, batch"),
        ("tool=x", "there is no filter 'tool'", "filters are run"),
        ("july", "'july' is no filter", "key=value"),
        ("batch=", "'batch=' is no filter", "key=value"),
        ("state=wating", r"there is no state 'wating' \(did you mean 'waiting'\?\)", "queued, running"),
        (
            "stop_reason:finished,loop_detectd",
            r"there is no stop_reason 'loop_detectd' \(did you mean 'loop_detected'\?\)",
            "finished, step_budget",
        ),
        ({"state": "*"}, r"there is no state '\*'", "queued, running"),
        ("batch=a batch=b", "batch is given twice, as 'a' and 'b'", "batch=a,b means either"),
        ("custom_id='a", "cannot be read: No closing quotation", "quote as in a shell"),
        ("usd>much", "usd is a number, and 'much' is none", "usd>0.5"),
        ("usd>nan", "usd is a number, and 'nan' is none", "usd>0.5"),
        ("steps>1,2", "steps is a number, and '1,2' is none", "steps>0.5"),
        ("batch>july", "batch is no number: > cannot be asked of it", "batch=july"),
        ("age=2h", "an age is compared", "age>2h"),
        ("age>2", "'2' is no span of time", "2h"),
        ("-usd>2", "says no twice, or of a number", "-key:value"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_nearest(terms: Any, said: str, hint: str) -> None:
    """And with all that there are."""
    with pytest.raises(UsageError, match=said) as refused:
        made(terms)
    assert hint in refused.value.hint


def test_a_filter_is_written_as_it_can_be_typed() -> None:
    """For sentences that name it."""
    typed = str(made({"batch": "july", "custom_id": "t 1"}))
    assert typed == "batch=july custom_id='t 1'"
    assert str(made(typed)) == typed
    assert str(made("-state:ended usd>0.5 batch=a batch=a")) == "state!=ended usd>0.5 batch=a"


def test_the_clock_is_asked_only_for_an_age() -> None:
    """Most filters cost no round trip."""
    assert where("batch=july", keys=RUN_KEYS, now=lambda: 1 // 0).holds(RUN)


def test_only_is_what_no_other_value_can_be() -> None:
    """A list, a star and a negation leave more than one."""
    assert made("batch=july usd>1").only("batch") == "july"
    assert [made(text).only("batch") for text in ("", "batch:a,b", "batch:j*", "batch!=july")] == [None] * 4


def test_a_word_is_a_term_or_a_name() -> None:
    """So that more terms may follow --where, and a name beside it is refused."""
    assert all(map(is_term, ("batch=a", "state:held", "usd>1", "a!=b")))
    assert not any(map(is_term, ("july", "run_ab:c1", "2026-07", "a.b@c")))
