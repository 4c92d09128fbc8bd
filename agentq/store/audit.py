"""Whether the books agree: the log, laid over the last checkpoint, with the accounts and what runs hold.

It is exact while workers run. Accounts are read some at a time, each time at one instant together with
the number that the log has reached; the log is then added up to just that number and compared. Until the
audit is over nothing is folded, so the checkpoint under it stands still.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import redis

from agentq.core.errors import StoreError
from agentq.store.journal import Journal
from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

PIN_MS = 120_000
"""How long the log is not folded after each look: no page takes that long."""
CHUNK = 100
"""Accounts that are read at one instant."""
SHOWN = 1_000
"""Differences that are kept; the others are only counted."""
IDLE_RUNS = 2_000
"""Up to so many live runs, what idle ones hold is compared at one instant."""
DESCENDANTS = 2_000
"""A run with more is not compared with what they hold: they are read in one script."""
_NO_NUMBERS = {"c", "dc", "dul", "dtl"}
MONEY = ("us", "ur", "ue", "uf", "uo", "ts", "tr", "te")
"""The fields that the log moves."""
T = TypeVar("T")
_WORDS = {
    "us": "spent usd",
    "ur": "reserved usd",
    "ue": "escrowed usd",
    "ui": "idle usd",
    "uf": "forfeited usd",
    "uo": "overage usd",
    "ts": "spent tokens",
    "tr": "reserved tokens",
    "te": "escrowed tokens",
    "ti": "idle tokens",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that is not what it must be. Money is nano-USD."""

    scope: str
    field: str
    books: int
    state: int
    against: str
    """What the books are here: log, reservations, idle runs, parked runs, numbers, or zero."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A rollback of the server that a worker noticed: what was lost between these times (ms)."""

    process: str
    since_ms: int
    till_ms: int
    reservations: int
    nano_usd: int
    tokens: int


@dataclass(slots=True)
class Verdict:
    """What an audit has found."""

    folded: int = 0
    last: int = 0
    accounts: int = 0
    runs: int = 0
    found: int = 0
    """How many differences there are; `differences` are the first of them."""
    differences: list[Difference] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    idle_compared: bool = True
    """False: more runs live than could be read at one instant, so their idle escrows were not summed."""

    @property
    def agrees(self) -> bool:
        """Whether the books agree. A rollback that was noticed is no difference."""
        return self.found == 0

    def add(self, scope: str, name: str, books: int, state: int, against: str) -> None:
        """Keep a difference, unless it is none."""
        if books == state:
            return
        difference = Difference(scope, _WORDS.get(name, name), books, state, against)
        if difference not in self.differences:
            self.found += 1
            if len(self.differences) < SHOWN:
                self.differences.append(difference)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run at one instant; `held` is what it and its descendants hold, by the fields of an account."""

    state: str
    is_listed: bool
    held: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Look:
    """An account at one instant; `run` is there when it is a run's."""

    account: str
    fields: dict[str, int]
    checkpoint: dict[str, int]
    exists: bool
    run: _Run | None


class Audit:
    """The auditor of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts, journal: Journal) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._journal = journal

    def verify(self) -> Verdict:
        """Compare everything. Reads the whole log and all accounts, page by page.

        Raises:
            StoreError: when the log was folded meanwhile, because a look took longer than two minutes.
        """
        verdict = Verdict(incidents=list(self.incidents()))
        self._look([])  # from here on nothing is folded
        verdict.folded = verdict.last = self._journal.folded()
        books = _Books(self._journal, verdict)
        idle: list[str] = []
        for accounts in chunks(self._accounts("scope"), CHUNK):
            idle += self._compare(accounts, books, verdict)
        # What the books know and nobody has seen: accounts that are new, or that are not there.
        for accounts in chunks(books.unseen(), CHUNK):
            idle += self._compare(accounts, books, verdict)
        for accounts in chunks(self._accounts("checkpoint"), CHUNK):
            self._compare(self._absent(accounts), books, verdict)
        self._idle(idle, verdict)
        return verdict

    def incidents(self) -> Iterator[Incident]:
        """The rollbacks that were noticed, the last 1,000."""
        for text in self._client.lrange(self._keys.incidents, 0, -1):
            event = json.loads(text)
            yield Incident(
                event["process"],
                int(event["since"]),
                int(event["till"]),
                int(event["reservations"]),
                int(event["nano_usd"]),
                int(event["tokens"]),
            )

    def _accounts(self, kind: str) -> Iterator[str]:
        """Every account that there is, or that the checkpoint knows. Some may come twice."""
        prefix = f"{self._keys.prefix}{kind}:"
        for key in self._client.scan_iter(match=f"{prefix}*", count=1_000):
            yield str(key).removeprefix(prefix)

    def _absent(self, accounts: Iterable[str]) -> list[str]:
        """Of these accounts, those that are not there."""
        pipeline = self._client.pipeline(transaction=False)
        names = list(accounts)
        for account in names:
            pipeline.exists(self._keys.scope(account))
        return [account for account, there in zip(names, pipeline.execute(), strict=True) if not there]

    def _look(self, accounts: Sequence[str]) -> tuple[int, int, list[_Look]]:
        last, folded, found = self._scripts.call("ledger_audit", PIN_MS, DESCENDANTS, *accounts)
        looks = []
        for account, (fields, checkpoint, exists, *run) in zip(accounts, found, strict=True):
            about = _Run(run[0], run[1] == 1, _numbers(run[2])) if run else None
            looks.append(_Look(account, _numbers(fields), _numbers(checkpoint), exists == 1, about))
        return int(last), int(folded), looks

    def _compare(self, accounts: Sequence[str], books: _Books, verdict: Verdict) -> list[str]:
        """Compare these accounts; answers those, but for runs, that say that idle runs hold something."""
        last, folded, looks = self._look(accounts)
        if folded != verdict.folded:
            raise StoreError("the log was folded during the audit: the server was too slow; verify again")
        books.roll(last)
        idle = []
        for look in looks:
            books.seen(look.account)
            if not look.exists and _may_be_gone(look):
                continue
            verdict.accounts += 1
            by_books = books.of(look)
            for name in MONEY:
                verdict.add(look.account, name, by_books[name], look.fields.get(name, 0), "log")
            for name in (*MONEY, "ui", "ti"):
                amount = look.fields.get(name, 0)
                verdict.add(look.account, name, max(0, amount), amount, "zero")
            if look.run is not None:
                verdict.runs += 1
                for name, amount in look.run.held.items():
                    verdict.add(look.account, name, amount, look.fields.get(name, 0), "reservations")
                if look.run.state == "parked":
                    listed = int(look.run.is_listed)
                    verdict.add(look.account, "in a list of parked runs", 1, listed, "parked runs")
            elif look.fields.get("ui") or look.fields.get("ti"):
                idle.append(look.account)
        return idle

    def _idle(self, accounts: Iterable[str], verdict: Verdict) -> None:
        """Compare what idle runs hold with what the accounts say that they hold, at one instant."""
        reply = self._scripts.call("ledger_idle", IDLE_RUNS, *accounts)
        match reply:
            case ["OK", list(sums), list(strays)]:
                for account, *pairs in chunks(sums, 5):
                    usd, says_usd, tokens, says_tokens = map(int, pairs)
                    verdict.add(account, "ui", usd, says_usd, "idle runs")
                    verdict.add(account, "ti", tokens, says_tokens, "idle runs")
                for place, run in chunks(strays, 2):
                    verdict.add(f"run:{run}", f"parked in {place}", 0, 1, "parked runs")
            case ["TOO_MANY", _]:
                verdict.idle_compared = False
            case _:
                raise unexpected("ledger_idle", reply)


class _Books:
    """The log since the checkpoint, added up as far as it was read."""

    def __init__(self, journal: Journal, verdict: Verdict) -> None:
        self._journal = journal
        self._verdict = verdict
        self._sums: dict[str, Counter[str]] = {}
        self._opened: set[str] = set()
        self._seen: set[str] = set()

    def roll(self, last: int) -> None:
        """Add the entries up to number `last`, and see that none is missing."""
        at = self._verdict.last
        for entry in self._journal.read(at, last):
            self._verdict.add("log", "number", at + 1, entry.seq, "numbers")
            at = entry.seq
            for account in entry.scopes:
                # A batch of this name begins: what another one had is not its own.
                if entry.operation == "open":
                    self._opened.add(account)
                    self._sums.pop(account, None)
                if entry.deltas:
                    self._sums.setdefault(account, Counter()).update(entry.deltas)
        self._verdict.add("log", "last number", last, at, "numbers")
        self._verdict.last = last

    def of(self, look: _Look) -> Counter[str]:
        """What an account must have, by the books."""
        total: Counter[str] = Counter() if look.account in self._opened else Counter(look.checkpoint)
        total.update(self._sums.get(look.account, Counter()))
        return total

    def seen(self, account: str) -> None:
        """This account was compared."""
        if account in self._sums:
            self._seen.add(account)

    def unseen(self) -> list[str]:
        """The accounts in the log that were not compared since they were in it."""
        return [account for account in self._sums if account not in self._seen]


def _may_be_gone(look: _Look) -> bool:
    """Whether an account that is not there has expired: a window, or a run's or a batch's that is over."""
    kind = look.account.partition(":")[0]
    if "@day:" in look.account or "@month:" in look.account or kind == "batch":
        return True
    return kind == "run" and (look.run is None or not look.run.state)


def _numbers(flat: Sequence[str]) -> dict[str, int]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name: int(text) for name, text in pairs if name not in _NO_NUMBERS}


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
