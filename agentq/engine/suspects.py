"""Steps that may be what killed their processes: one of them at a time in each process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Place:
    """The one place for a suspect, while a claim asks for it and as long as the suspect is at work."""

    def __init__(self, guard: threading.Lock) -> None:
        self._guard = guard
        self.is_free = guard.acquire(blocking=False)
        """Whether this claim may take a suspect."""
        self._has = self.is_free

    def leave(self) -> None:
        """Give the place to others."""
        if self._has:
            self._has = False
            self._guard.release()


class Suspects:
    """The place of one process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """The place, if it is free, until the end of the block or until it is left."""
        place = Place(self._guard)
        try:
            yield place
        finally:
            place.leave()
