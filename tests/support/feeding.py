"""What holds between scripts of runs in flight, rows and turns: read from one dump of a namespace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

State = Mapping[str, tuple[Any, bool]]
"""Every key without its prefix: its content, and whether it has an end."""
_DROPPED = ("cancelled", "cost_budget", "token_budget")
LEAST_DELAYED = 8
"""A batch with fewer delayed runs is fed, however small the window is."""


def check(state: State, now_ms: int) -> None:
    """Everything, as of this time of the server."""
    runs = {
        name[4:]: content
        for name, (content, _) in state.items()
        if name.startswith("run:") and name.count(":") == 1
    }
    check_slots(state, runs, now_ms)
    for batch in batches(state):
        check_rows(state, batch, runs)
        check_turns(state, batch, now_ms)


def batches(state: State) -> list[str]:
    """The names of all batches."""
    return [name[6:] for name in state if name.startswith("batch:") and name.count(":") == 1]


def check_slots(state: State, runs: Mapping[str, Mapping[str, str]], now_ms: int) -> None:
    """Who is in flight is at work, or queued and due; each once, and also by tenant and batch.

    A run whose delay is over takes its slot with its first hint, or when it is claimed: either may be.
    """
    at_work = {run_id for run_id, run in runs.items() if run["state"] in {"running", "cancelling"}}
    queued = {run_id: run for run_id, run in runs.items() if run["state"] == "queued"}
    due = {run_id for run_id, run in queued.items() if "not_before" not in run}
    slots = set(_get(state, "slots", []))
    assert at_work | due <= slots, f"no slot: {(at_work | due) - slots}"
    assert slots <= at_work | set(queued), (
        f"a slot: { ({r: runs.get(r) for r in slots - at_work - set(queued)}) }"
    )
    early = {run_id for run_id in slots & set(queued) if int(queued[run_id].get("not_before", 0)) > now_ms}
    assert not early, f"a slot before their delay is over: {early}"
    tenants, of_batches = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for run_id in slots:
        tenants[runs[run_id]["tenant"]].add(run_id)
        if runs[run_id].get("batch"):
            of_batches[runs[run_id]["batch"]].add(run_id)
    assert _sets(state, "slots:t:") == tenants
    assert _sets(state, "slots:b:") == of_batches
    assert set(_get(state, "flying", [])) == set(tenants)
    for name, (members, _) in state.items():
        if name.endswith(":delayed"):
            assert set(members) <= set(queued) - slots, f"{name}: {members}"


def check_rows(state: State, batch: str, runs: Mapping[str, Mapping[str, str]]) -> None:
    """Each row is in one list and has its content, or is a run; the counters are those of both."""
    key = f"batch:{batch}"
    fields = _get(state, key, {})
    lists = {part: _members(state, f"{key}:{part}") for part in ("feed", "loading")}
    dropped = {reason: _members(state, f"{key}:dropped:{reason}") for reason in _DROPPED}
    of_all = [row for members in (*lists.values(), *dropped.values()) for row in members]
    assert len(of_all) == len(set(of_all)), f"{batch}: a row is in two lists"
    assert set(of_all) == set(_get(state, f"{key}:rows", {})), f"{batch}: the content of other rows"
    assert not set(of_all) & set(runs), f"{batch}: a run is a row too"
    order = _get(state, f"{key}:runs", [])
    admitted = [run_id for run_id in order if run_id in runs]
    assert sorted(order) == sorted([*of_all, *admitted]), f"{batch}: rows that are in no list"
    assert len(order) == int(fields["total"]), f"{batch}: {fields['total']} and {len(order)} rows"
    known = dict(text.split(" ")[::-1] for text in _get(state, f"{key}:ids", {}).values())
    assert set(known) <= set(order)
    live = {run_id for run_id in admitted if runs[run_id]["state"] != "ended"}
    assert set(_get(state, f"{key}:open", [])) == live
    reasons = Counter(runs[run_id]["stop_reason"] for run_id in admitted if run_id not in live)
    reasons += Counter({reason: len(rows) for reason, rows in dropped.items()})
    counted = {name[5:]: int(count) for name, count in fields.items() if name.startswith("stop:")}
    assert counted == dict(reasons), f"{batch}: {counted} and {reasons}"
    assert int(fields["ended"]) == reasons.total(), f"{batch}: {fields['ended']} and {reasons}"
    over = "sealed" in fields and int(fields["ended"]) >= int(fields["total"])
    if over and not int(fields.get("descendants", 0)):
        assert state[key][1], f"{batch} is over and has no end"
    else:
        endless = {name for name, (_, end) in state.items() if name.startswith(key) and end}
        assert not endless, f"{batch} goes on, and these end: {endless}"


def check_turns(state: State, batch: str, now_ms: int) -> None:
    """A batch whose rows may be admitted takes turns, and so does its tenant. Else its rows would starve."""
    key = f"batch:{batch}"
    fields, tenant = _get(state, key, {}), _get(state, key, {})["tenant"]
    if "dry" in fields:
        assert batch not in _members(state, f"turns:{tenant}"), f"{batch} has no money and takes turns"
    if not is_feedable(state, batch, now_ms) or batch in _members(state, "starts"):
        return
    assert batch in _members(state, f"turns:{tenant}"), f"{batch} takes no turns: {fields}"
    feeder = _get(state, "feeder", {})
    most = feeder.get(f"max:{tenant}", feeder.get("tenant_max"))
    if most is None or len(_get(state, f"slots:t:{tenant}", [])) < int(most):
        assert tenant in _members(state, "turns"), f"{tenant} takes no turns: {feeder}"


def is_feedable(state: State, batch: str, now_ms: int) -> bool:
    """Whether nothing of the batch itself is in the way of its next row."""
    key = f"batch:{batch}"
    fields = _get(state, key, {})
    feed = _get(state, f"{key}:feed", [])
    in_flight, is_open = len(_get(state, f"slots:b:{batch}", [])), len(_get(state, f"{key}:open", []))
    if not feed or any(name in fields for name in ("cancelled", "paused", "dry")):
        return False
    if int(fields.get("at", 0)) > now_ms or ("pilot" in fields and min(score for _, score in feed) >= 0):
        return False
    if len(_get(state, f"{key}:delayed", [])) >= LEAST_DELAYED:
        return False
    in_flight += len(_get(state, f"{key}:delayed", []))
    return in_flight < int(fields.get("max_in_flight", 10**9)) and is_open < int(
        fields.get("max_open", 10**9)
    )


def _get(state: State, name: str, default: Any) -> Any:
    return state[name][0] if name in state else default


def _members(state: State, name: str) -> list[str]:
    return [member for member, _ in _get(state, name, [])]


def _sets(state: State, prefix: str) -> dict[str, set[str]]:
    return {
        name.removeprefix(prefix): set(content)
        for name, (content, _) in state.items()
        if name.startswith(prefix)
    }
