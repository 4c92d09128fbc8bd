"""The filter that people type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentq.app.where import CALL_KEYS, RUN_KEYS, Where, where
from agentq.core.errors import UsageError
from agentq.core.lifecycle import RunState
from agentq.core.records import PendingCall, RunRecord, RunSpec

RUN = RunRecord(
    id="run_a",
    spec=RunSpec("triage", tenant="acme", batch="july", custom_id="t 1"),
    state=RunState.WAITING,
    step=0,
    phase="tools",
    created_ms=0,
)
CALL = PendingCall("c1", "cancel_order", "{}", "cancel_order:1", 0, 0)


@pytest.mark.parametrize(
    "terms",
    [
        None,
        "",
        "batch=july tool=cancel_order",
        {"batch": "july", "kind": "approval"},
        ["run=run_a", "tenant=acme state=waiting"],
        "custom_id='t 1' agent=triage",
    ],
)
def test_a_call_is_meant_where_all_terms_hold(terms: Any) -> None:
    """Words are quoted as in a shell."""
    assert where(terms, keys=CALL_KEYS).holds_for(RUN, CALL)


@pytest.mark.parametrize(
    "terms", ["batch=june", "batch=july tool=other", "kind=unknown", "state=parked", {"custom_id": "t"}]
)
def test_a_call_is_not_meant_where_one_term_does_not_hold(terms: Any) -> None:
    """One that fails is enough."""
    assert not where(terms, keys=CALL_KEYS).holds_for(RUN, CALL)


def test_a_run_without_a_batch_is_in_no_batch() -> None:
    """Not even in one of an odd name."""
    alone = replace(RUN, spec=RunSpec("triage"))
    assert not where("batch=None", keys=RUN_KEYS).holds(alone)
    assert where("tenant=default", keys=RUN_KEYS).holds(alone)


@pytest.mark.parametrize(
    "terms, said, hint",
    [
        ("bach=july", r"there is no filter 'bach' \(did you mean 'batch'\?\)", "filters are run, batch"),
        ("tool=x", "there is no filter 'tool'", "filters are run"),
        ("july", "'july' is no filter", "key=value"),
        ("batch=", "'batch=' is no filter", "key=value"),
        ("state=wating", r"there is no state 'wating' \(did you mean 'waiting'\?\)", "queued, running"),
        ("batch=a batch=b", "batch is given twice, as 'a' and 'b'", ""),
        ("custom_id='a", "cannot be read: No closing quotation", "quote as in a shell"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_nearest(terms: str, said: str, hint: str) -> None:
    """And with all that there are."""
    with pytest.raises(UsageError, match=said) as refused:
        where(terms, keys=RUN_KEYS)
    assert hint in refused.value.hint


def test_a_filter_is_written_as_it_can_be_typed() -> None:
    """For sentences that name it."""
    typed = str(where({"batch": "july", "custom_id": "t 1"}, keys=RUN_KEYS))
    assert typed == "batch=july custom_id='t 1'"
    assert where(typed, keys=RUN_KEYS) == Where({"batch": "july", "custom_id": "t 1"})
