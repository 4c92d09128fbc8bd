"""What holds at every instant, for all runs of a namespace: its ledger, and who waits for money.

It is read from one dump of the namespace, so it says the same about one instant. What each run is, who looks
at it and when its keys end is the checkup's: `agentq.store.checkup`, which `harness.check_runs` calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

State = Mapping[str, tuple[Any, bool]]
"""Every key without its prefix: its content, and whether it has an end."""
Pair = tuple[int, int]
AMOUNTS = ("us", "ts", "ur", "tr", "ue", "te", "uf", "uo")
"""The fields of an account that only the log changes; `ui` and `ti` are an index beside it."""
_MOVES_NOTHING = {"open", "alert", "limit", "topup", "freeze", "unfreeze", "winddown", "incident"}
_PARKED = {"park_scope", "park_unit", "park_kind", "park_need", "park_policy", "park_till"}


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger's log."""

    op: str
    id: str
    accounts: tuple[str, ...]
    deltas: Mapping[str, int]
    fields: Mapping[str, str]

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Entry:
        pairs = fields["d"].split()
        deltas = dict(zip(pairs[::2], map(int, pairs[1::2]), strict=True))
        assert all(deltas.values()), f"an entry says that nothing has changed: {fields}"
        return cls(fields["o"], fields["i"], tuple(fields["s"].split()), deltas, fields)


@dataclass
class Books:
    """One run's money, folded from the log alone."""

    open: dict[str, Pair] = field(default_factory=dict)
    spent: dict[str, Pair] = field(default_factory=dict)
    forfeited: dict[str, Pair] = field(default_factory=dict)
    accounts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Where each reservation stands: it closes where it was made."""
    escrow: Pair = (0, 0)
    overage: int = 0

    def take(self, entry: Entry, reservation: str) -> None:
        d = defaultdict(int, entry.deltas)
        held = (d["ur"], d["tr"])
        cost, back = (d["us"], d["ts"]), (-d["ur"], -d["tr"])
        self.escrow = (self.escrow[0] + d["ue"], self.escrow[1] + d["te"])
        self.overage += d["uo"]
        match entry.op:
            case "reserve" | "convert":
                assert reservation not in self.accounts, f"{reservation} is made twice"
                assert entry.op == "reserve" or self.escrow == (0, 0)
                self.open[reservation], self.accounts[reservation] = held, entry.accounts
            case "settle":
                assert self.open.pop(reservation) == back
                self.spent[reservation] = cost
            case "forfeit":
                assert self.open.pop(reservation) == back == cost
                self.spent[reservation] = self.forfeited[reservation] = cost
            case "late":
                assert self.forfeited.pop(reservation)[0] == -d["uf"]
                full = self.spent[reservation]
                self.spent[reservation] = (full[0] + cost[0], full[1] + cost[1])
            case "release":
                assert self.open.pop(reservation) == back
            case "restore":
                assert self.open.pop(reservation) == back == (d["ue"], d["te"])
            case "reassert":
                assert reservation not in self.spent
                self.spent[reservation] = cost
                if d["uf"]:  # in full, until its bill is known
                    self.forfeited[reservation] = cost
            case "escrow":
                assert self.escrow == (0, 0)
            case _:
                raise AssertionError(f"the log has an unknown operation {entry.op!r}")
        if reservation in self.accounts:
            assert sorted(entry.accounts) == sorted(self.accounts[reservation]), entry


def is_window(account: str) -> bool:
    """Whether it is the account of one day or month."""
    return ":" in account.partition("@")[2]


def amounts(fields: Mapping[str, str]) -> dict[str, int]:
    """An account's money that is not zero."""
    return {
        name: int(fields[name]) for name in sorted({*AMOUNTS, "ui", "ti"} & set(fields)) if int(fields[name])
    }


def entries(state: State) -> list[dict[str, str]]:
    """The ledger's log, whose numbers have no gap and go on where the checkpoint ends."""
    found = _content(state, "log", [])
    numbers = [int(name.partition("-")[2]) for name, _ in found]
    first = int(_content(state, "ledger", {}).get("folded", 0)) + 1
    assert numbers == list(range(first, first + len(numbers)))
    return [entry for _, entry in found]


def accounts(state: State) -> dict[str, dict[str, int]]:
    """Every account that there is, with its money that is not zero."""
    return {
        name.removeprefix("scope:"): amounts(content)
        for name, (content, _) in state.items()
        if name.startswith("scope:")
    }


def check(state: State, run_ids: Sequence[str], *, capped: bool) -> None:
    """Everything. `capped`: no account stands above its limit."""
    runs: dict[str, dict[str, str]] = {run_id: state[f"run:{run_id}"][0] for run_id in run_ids}
    held = _check_runs(state, runs)
    _check_accounts(state, held)
    if capped:
        _check_limits(state)
    _check_parked(state, runs)


def _content(state: State, name: str, default: Any) -> Any:
    return state[name][0] if name in state else default


def _fold(state: State) -> dict[str, Books]:
    """Every run's money by the log, which must be whole."""
    books: dict[str, Books] = defaultdict(Books)
    for fields in entries(state):
        entry = Entry.read(fields)
        if entry.op in _MOVES_NOTHING:
            assert not entry.deltas, entry
        elif entry.op == "move":
            assert all("@" in account for account in entry.accounts), entry
        elif entry.op not in {"charge", "adjust"}:
            run_id, _, reservation = entry.id.partition(":")
            books[run_id].take(entry, reservation)
    return books


def _totals(state: State) -> dict[str, dict[str, int]]:
    """What the checkpoint and the log say of every account: only what is not zero."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, (content, _) in state.items():
        if name.startswith("checkpoint:"):
            sums[name.removeprefix("checkpoint:")].update({k: int(v) for k, v in content.items()})
    for fields in entries(state):
        entry = Entry.read(fields)
        for account in entry.accounts:
            if entry.op == "open":  # another account that had this name has expired
                sums[account].clear()
            for name, delta in entry.deltas.items():
                sums[account][name] += delta
    return {account: {k: v for k, v in fields.items() if v} for account, fields in sums.items()}


def _check_runs(state: State, runs: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Each run against its log, while that is whole; answers what all of them hold, by account."""
    whole = "folded" not in _content(state, "ledger", {})
    books = _fold(state) if whole else {}
    assert set(books) <= set(runs)
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for run_id, run in runs.items():
        texts = dict(_content(state, f"run:{run_id}:open", {}))
        texts.pop("n", None)
        escrow = texts.pop("escrow", None)
        forfeits = _content(state, f"run:{run_id}:forfeits", {})
        scopes = run["scopes"].split()
        for text in texts.values():
            _hold(sums, scopes, text, "ur", "tr")
        for text in forfeits.values():
            _hold(sums, scopes, text, "uf", "")
        if escrow is not None:
            _hold(sums, scopes, escrow, "ue", "te")
            if run["state"] in {"parked", "waiting", "held"}:
                _hold(sums, scopes, escrow, "ui", "ti")
        if whole:
            mine = books.get(run_id, Books())
            assert {name: _pair(text) for name, text in texts.items()} == mine.open, run_id
            assert {name: _pair(text) for name, text in forfeits.items()} == mine.forfeited, run_id
            assert _pair(escrow or "0 0") == mine.escrow, run_id
            for name, where in mine.accounts.items():
                assert set(scopes) <= set(where), f"{run_id}:{name} skips a scope: {where}"
    return sums


def _pair(text: str) -> Pair:
    usd, tokens = text.split()[:2]
    return int(usd), int(tokens)


def _hold(
    sums: dict[str, dict[str, int]], scopes: Sequence[str], text: str, usd_field: str, token_field: str
) -> None:
    """Add what is held to each account in which it is held: the scopes, and the windows that it names."""
    usd, tokens = _pair(text)
    for account in [*scopes, *(word for word in text.split() if "@" in word)]:
        sums[account][usd_field] += usd
        if token_field:
            sums[account][token_field] += tokens


def _check_accounts(state: State, held: Mapping[str, Mapping[str, int]]) -> None:
    booked, there = _totals(state), accounts(state)
    for account in sorted({*there, *booked, *held}):
        if account not in there:
            # Only a window may be gone, and only as a whole.
            assert is_window(account) or not booked.get(account), f"{account} is missing"
            continue
        fields = there[account]
        by_the_log = {name: fields[name] for name in AMOUNTS if name in fields}
        assert by_the_log == booked.get(account, {}), f"{account}: the log says something else"
        mine = held.get(account, {})
        for name in ("ur", "tr", "ue", "te", "ui", "ti", "uf"):
            assert fields.get(name, 0) == mine.get(name, 0), f"{account} {name}: {fields} and {dict(mine)}"
        assert all(amount >= 0 for amount in fields.values()), f"{account}: {fields}"


def _check_limits(state: State) -> None:
    for account, fields in accounts(state).items():
        limits_of = account.rpartition(":")[0] if is_window(account) else account
        limits = _content(state, f"scope:{limits_of}", {})
        for unit in "ut":
            taken = sum(fields.get(unit + what, 0) for what in "sre")
            limit = limits.get(f"{unit}l")
            assert limit is None or taken <= int(limit), f"{account} is over its limit of {limit}: {fields}"


def _check_parked(state: State, runs: Mapping[str, Mapping[str, str]]) -> None:
    """The lists are exactly the parked runs, each once, where it says that it is."""
    found = [
        (run_id, name.removeprefix("parked:"), int(since))
        for name, (content, _) in state.items()
        if name.startswith("parked:")
        for run_id, since in content
    ]
    parked = {run_id: run for run_id, run in runs.items() if run["state"] == "parked"}
    assert sorted(found) == sorted(
        (run_id, run["park_scope"], int(run["parked"])) for run_id, run in parked.items()
    )
    lists = {name for _, name, _ in found}
    assert set(_content(state, "parked", [])) == lists
    assert int(_content(state, "ledger", {}).get("parked", 0)) == len(lists)
    looks = dict(_content(state, "watch", []))
    for run_id, run in runs.items():
        words = {name for name in run if name.startswith("park_")}
        assert words == (_PARKED if run_id in parked else set()), f"{run_id} is {run['state']}: {words}"
        if run_id in parked:
            assert looks[run_id] <= int(run["park_till"]) or run["park_kind"] == "frozen"
