"""The ledger's log, read entry by entry: for audits, and for whoever exports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from agentq.store.keys import Keys
from agentq.store.scripts import Scripts, unexpected

PAGE = 1_000
"""Entries that are read at once."""
OF_A_RUN = frozenset(
    {"reserve", "convert", "settle", "late", "release", "restore", "forfeit", "escrow", "move", "reassert"}
)
"""Operations that are about a run; the others are about what they name: a scope, or a process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of the ledger. Money is nano-USD, `at_ms` the server's milliseconds since 1970."""

    seq: int
    at_ms: int
    operation: str
    subject: str
    """`run:reservation`, a run, a scope or a process, as the operation is about one."""
    scopes: tuple[str, ...] = ()
    """The accounts that it changed, each by `deltas`."""
    deltas: dict[str, int] = field(default_factory=dict)
    catalogue: str = ""
    actor: str = ""
    reason: str = ""
    words: str = ""
    estimated: bool = False

    @property
    def run(self) -> str:
        """The run that it is about, or nothing."""
        return self.subject.partition(":")[0] if self.operation in OF_A_RUN else ""

    @property
    def reservation(self) -> str:
        """The reservation that it is about, or nothing."""
        return self.subject.partition(":")[2] if self.operation in OF_A_RUN else ""


class Journal:
    """The log of one namespace. Its entries are numbered from 1, without a gap."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        self._client = client
        self._keys = keys
        self._scripts = scripts

    def folded(self) -> int:
        """The last number that is in the checkpoint and no longer in the log; 0 when all are there."""
        return int(str(self._client.hget(self._keys.ledger, "folded") or 0))

    def last(self) -> int:
        """The last number that was given; 0 before the first."""
        newest: Any = self._client.xrevrange(self._keys.log, count=1)
        return _number(newest[0][0]) if newest else self.folded()

    def read(self, after: int, until: int | None = None) -> Iterator[Entry]:
        """The entries behind number `after`, up to number `until` or the end of the log. Reads pages."""
        while until is None or after < until:
            page: Any = self._client.xrange(
                self._keys.log,
                min=f"0-{after + 1}",
                max="+" if until is None else f"0-{until}",
                count=PAGE,
            )
            for name, fields in page:
                entry = _entry(name, fields)
                after = entry.seq
                yield entry
            if len(page) < PAGE:
                return

    def mark(self, seq: int | None) -> None:
        """Keep what comes after this number until it is exported too; None: nobody exports any more."""
        reply = self._scripts.call("ledger_mark", "" if seq is None else seq)
        if reply != ["OK"]:
            raise unexpected("ledger_mark", reply)


def _number(name: str) -> int:
    return int(name.partition("-")[2])


def _entry(name: str, fields: dict[str, str]) -> Entry:
    pairs = fields["d"].split()
    return Entry(
        seq=_number(name),
        at_ms=int(fields["m"]),
        operation=fields["o"],
        subject=fields["i"],
        scopes=tuple(fields["s"].split()),
        deltas=dict(zip(pairs[::2], map(int, pairs[1::2]), strict=True)),
        catalogue=fields.get("c", ""),
        actor=fields.get("a", ""),
        reason=fields.get("r", ""),
        words=fields.get("w", ""),
        estimated=fields.get("e") == "1",
    )
