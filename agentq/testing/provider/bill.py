"""The server's own books: what it has answered, and what that has used."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from agentq.testing.provider.request import Dialect

ENTRIES_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request. Written before its answer is sent, so what a client has seen is in the books.

    `seconds` counts from the start of the server. What was refused has used nothing. `faults` are those that
    had to do with it.
    """

    number: int
    seconds: float
    dialect: Dialect
    model: str
    key: str
    status: int
    request_id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over entries; `answered` are those with status 200, `limited` those with 429."""

    requests: int = 0
    answered: int = 0
    limited: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def plus(self, entry: Entry) -> Totals:
        """The sums with one more."""
        return Totals(
            self.requests + 1,
            self.answered + (entry.status == 200),
            self.limited + (entry.status == 429),
            self.input_tokens + entry.input_tokens,
            self.output_tokens + entry.output_tokens,
        )


class Bill:
    """All totals, the last 100,000 entries, and a file of all entries where one was named."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Begin a bill.

        Args:
            path: a file to which each entry is added as a line of JSON.

        Raises:
            OSError: when the file cannot be written.
        """
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._totals = Totals()
        self._file = None if path is None else Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by close()

    @property
    def entries(self) -> list[Entry]:
        """The last ones, the oldest first."""
        with self._lock:
            return list(self._entries)

    @property
    def totals(self) -> Totals:
        """The sums over all requests so far."""
        with self._lock:
            return self._totals

    def now_s(self) -> float:
        """Seconds since the bill was begun."""
        return time.monotonic() - self._began

    def add(self, entry: Entry) -> None:
        """Write one entry; the file has it when this returns."""
        with self._lock:
            self._entries.append(entry)
            self._totals = self._totals.plus(entry)
            if self._file is not None:
                self._file.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the file; the entries can still be read."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
