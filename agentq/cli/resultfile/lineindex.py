"""What lines a file has, in a database on the disk: memory does not grow with the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from agentq.cli.resultfile.version import is_newer

_CACHE_KB = 8_000


class Line(NamedTuple):
    """What is known of the lines of one run."""

    id: str
    version: int
    """Of its last line: see `agentq.cli.resultfile.version`."""
    custom_id: str
    copies: int
    """How many lines of one and the same result there are beside the first."""


class LineIndex:
    """The lines of one file by the ids of their runs. The database has no name and ends with its process."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KB}"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE lines (id TEXT PRIMARY KEY, version INTEGER, custom_id TEXT, copies INTEGER)"
            " WITHOUT ROWID"
        )
        self._db.execute("BEGIN")

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()

    def note(self, id: str, version: int = 0, custom_id: str = "") -> None:
        """A line is there."""
        self._db.execute(
            "INSERT INTO lines VALUES (?, ?, ?, 0) ON CONFLICT (id) DO UPDATE SET"
            " copies = copies + (version = excluded.version), version = excluded.version,"
            " custom_id = excluded.custom_id",
            (id, version, custom_id),
        )

    def find(self, id: str) -> Line | None:
        """The lines of a run, or None when it has none."""
        found = self._db.execute("SELECT * FROM lines WHERE id = ?", (id,)).fetchone()
        return None if found is None else Line(*found)

    def wants(self, id: str, version: int) -> bool:
        """Whether a result of this version is missing."""
        found = self.find(id)
        return is_newer(version, None if found is None else found.version)

    def __contains__(self, id: str) -> bool:
        return self.find(id) is not None

    def __len__(self) -> int:
        """How many runs there are."""
        (count,) = self._db.execute("SELECT COUNT(*) FROM lines").fetchone()
        return int(count)

    def __iter__(self) -> Iterator[Line]:
        return (Line(*found) for found in self._db.execute("SELECT * FROM lines"))

    def custom_ids(self) -> int:
        """How many custom ids there are, each counted once."""
        (count,) = self._db.execute("SELECT COUNT(DISTINCT custom_id) FROM lines").fetchone()
        return int(count)
