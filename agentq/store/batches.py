"""Batches: rows that were submitted together under one name. How they are read is in `batchreads.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import redis

from agentq.core.errors import ConflictError
from agentq.core.lifecycle import StopReason
from agentq.core.money import format_usd
from agentq.core.records import Opened, RowEntry
from agentq.store.batchreads import BatchReads
from agentq.store.keys import Keys
from agentq.store.scripts import Arg, Scripts, unexpected

CHUNK = 1_000
"""Rows that one script moves or takes back at most."""
LOADER_MS = 15_000
"""How long nobody need hear of a loader before another may take its place."""
SOMEBODY = "somebody"
"""A loader without a name."""


class LoadingError(ConflictError):
    """Somebody else is loading the batch: `other`; empty: it was cancelled or taken over meanwhile."""

    def __init__(self, batch: str, other: str) -> None:
        self.other = other
        if other:
            super().__init__(
                f"batch {batch!r} is being loaded by {other.replace('@', ' on ', 1)}",
                hint="wait until that is done; if it is dead, 15 seconds",
            )
        else:
            super().__init__(
                f"batch {batch!r} was cancelled, or taken over by another submit, while it was loaded",
                hint=f"agentq status {batch} shows it",
            )


class RowConflictError(Exception):
    """A row is there with other content. `place` is which of those that were to be added, from 0."""

    def __init__(self, place: int, run_id: str) -> None:
        super().__init__(place, run_id)
        self.place, self.run_id = place, run_id


class Batches(BatchReads):
    """All batches of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys, scripts: Scripts) -> None:
        super().__init__(client, keys)
        self._scripts = scripts

    def open(
        self,
        name: str,
        *,
        agent: str,
        tenant: str,
        usd: int | None,
        tokens: int | None,
        retention_ms: int,
        loader: str = SOMEBODY,
        dead: str = "",
        options: Mapping[str, str | int] | None = None,
    ) -> Opened:
        """Open a batch for loading, new or the same again.

        Args:
            name: the batch.
            agent: of all its rows; empty for several.
            tenant: who pays.
            usd: its limit in nano-USD; likewise `tokens`.
            retention_ms: how long it is kept when it is over.
            loader: who loads it, without a space. Heard of with each row that he adds.
            dead: a loader that is known to be gone.
            options: of a batch that has no row yet: max_in_flight, max_open, priority, at (ms), notify, pilot
                (how many rows are its sample), confirm_above (nano-USD). One that is there keeps its own: see
                `tune`.

        Raises:
            ConflictError: when it exists with another agent, tenant or cap.
            LoadingError: when somebody else is loading it.
        """
        flat = [part for item in (options or {}).items() for part in item]
        reply = self._scripts.call(
            "batch_open",
            name,
            agent,
            tenant,
            "" if usd is None else usd,
            "" if tokens is None else tokens,
            retention_ms,
            loader,
            LOADER_MS,
            dead,
            len(flat),
            *flat,
        )
        match reply:
            case ["OPEN", total, serial, now]:
                return Opened(int(total), serial, int(now))
            case ["LOADING", other]:
                raise LoadingError(name, other)
            case ["CONFLICT", "ul", present]:
                has = f"{format_usd(int(present))} USD" if present else "none"
                raise ConflictError(
                    f"batch {name!r} exists with another limit: {has}",
                    hint=f"leave the limit out, or agentq budget set batch:{name} --max-usd changes it",
                )
            case ["CONFLICT", "tl", present]:
                raise ConflictError(
                    f"batch {name!r} exists with another limit in tokens: {present or 'none'}",
                    hint=f"leave the limit out, or agentq budget set batch:{name} --max-tokens changes it",
                )
            case ["CONFLICT", field, present]:
                raise ConflictError(
                    f"batch {name!r} exists and belongs to {field} {present!r}",
                    hint="use another --batch name",
                )
            case _:
                raise unexpected("batch_open", reply)

    def add(
        self, name: str, rows: Sequence[RowEntry], templates: Mapping[str, str], *, loader: str = SOMEBODY
    ) -> list[bool]:
        """Add rows to a batch that is being loaded, all or none; for each whether it is new.

        Raises:
            RowConflictError: when one of them is there with other content: the place of the first.
            LoadingError: when somebody else loads the batch by now, or has cancelled it.
        """
        flat: list[Arg] = [part for item in templates.items() for part in item]
        reply = self._scripts.call(
            "batch_add",
            name,
            loader,
            LOADER_MS,
            len(flat),
            *flat,
            5 * len(rows),
            *(
                part
                for row in rows
                for part in (row.run_id, row.custom_id, row.content_hash, row.priority, row.payload)
            ),
        )
        match reply:
            case ["ADDED", _, *known]:
                there = {int(place) - 1 for place in known}
                return [place not in there for place in range(len(rows))]
            case ["CONFLICT", place, run_id]:
                raise RowConflictError(int(place) - 1, run_id)
            case ["LOST"] | ["MISSING"]:
                raise LoadingError(name, "")
            case _:
                raise unexpected("batch_add", reply)

    def abort(self, name: str, before: int, *, loader: str = SOMEBODY) -> None:
        """Take back all that this loader has added; `before` is how many rows there were.

        A batch that had none is gone then. Nothing happens when somebody else loads it by now.
        """
        while (reply := self._scripts.call("batch_abort", name, loader, before, CHUNK)) == ["MORE"]:
            pass
        if reply not in (["DONE"], ["LOST"], ["MISSING"]):
            raise unexpected("batch_abort", reply)

    def seal(self, name: str, *, loader: str = SOMEBODY) -> None:
        """Say that all rows are in: they may be admitted, and the batch is over when all its runs are.

        Raises:
            LoadingError: when somebody else loads the batch by now, or has cancelled it.
        """
        while (reply := self._scripts.call("batch_seal", name, loader, CHUNK)) == ["MORE"]:
            pass
        if reply == ["LOST"]:
            raise LoadingError(name, "")
        if reply[0] not in {"SEALED", "MISSING"}:
            raise unexpected("batch_seal", reply)

    def cancel(self, name: str, by: str) -> int:
        """Let no run of a batch be claimed until rows are added to it; how many rows that has ended."""
        match self._scripts.call("batch_cancel", name, by):
            case ["OK", dropped]:
                return int(dropped)
            case ["MISSING"]:
                return 0
            case reply:
                raise unexpected("batch_cancel", reply)

    def drop(self, name: str, reason: StopReason, *, denials: int = 1) -> int:
        """End the rows of a batch that are no runs yet, for want of money; how many they were.

        Not before it was called so often in turn, and no run of the batch has spent anything meanwhile.
        """
        match self._scripts.call("batch_drop", name, reason.value, denials):
            case ["OK", dropped]:
                return int(dropped)
            case ["MISSING"]:
                return 0
            case reply:
                raise unexpected("batch_drop", reply)

    def revive(self, name: str) -> int | None:
        """Let rows that ended as no runs wait again; how many, or None while runs are cancelled."""
        match self._scripts.call("batch_revive", name):
            case ["OK", revived]:
                return int(revived)
            case ["CANCELLING"]:
                return None
            case ["MISSING"]:
                return 0
            case reply:
                raise unexpected("batch_revive", reply)

    def tune(self, name: str, options: Mapping[str, str | int | None]) -> None:
        """Change max_in_flight, max_open, priority, at (ms), notify, confirm_above at once; None for none."""
        flat: list[Arg] = []
        for field, value in options.items():
            flat += [field, "" if value is None else value]
        reply = self._scripts.call("batch_tune", name, len(flat), *flat)
        if reply not in (["OK"], ["MISSING"]):
            raise unexpected("batch_tune", reply)

    def decide(self, name: str, ended: int, why: str) -> bool:
        """Let the rows behind a pilot that is over be admitted, or pause it; False when things have changed.

        Args:
            name: the batch.
            ended: how many of its rows had ended when this was made up.
            why: it is paused, as a person reads it; empty: it goes on.
        """
        match self._scripts.call("batch_decide", name, ended, why):
            case ["OK"]:
                return True
            case ["CHANGED"]:
                return False
            case reply:
                raise unexpected("batch_decide", reply)

    def pause(self, name: str, by: str) -> None:
        """Let no run of a batch be claimed until it is resumed."""
        self._pause(name, by)

    def resume(self, name: str) -> None:
        """Take back `pause`. Runs that it holds are let go one by one."""
        self._pause(name, "")

    def _pause(self, name: str, by: str) -> None:
        reply = self._scripts.call("batch_pause", name, by)
        if reply not in (["OK"], ["MISSING"]):
            raise unexpected("batch_pause", reply)
