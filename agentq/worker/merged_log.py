"""Many processes, one log: each line with the name of the one that wrote it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_CHUNK = 65_536
_LINE_BYTES = 65_536
"""A longer line is cut into pieces: one that never ends must not fill the memory."""


class MergedLog:
    """Reads pipes in the running event loop. `say` gets whole lines, `worker-1 | …`, without their end."""

    def __init__(self, say: Callable[[str], None], names: Sequence[str]) -> None:
        self._say = say
        self._width = max(len(name) for name in names)
        self._open: dict[str, _Reader] = {}

    def write(self, name: str, line: str) -> None:
        """One line of `name`."""
        # Whoever reads the log may be gone; the processes must go on.
        with suppress(OSError, ValueError):
            self._say(f"{name:<{self._width}} | {line}")

    @contextmanager
    def pipe(self, name: str) -> Iterator[int]:
        """The write end of a new pipe, open during the block: for a process to inherit as its output."""
        reading, writing = os.pipe()
        self._open[name] = _Reader(reading, lambda line: self.write(name, line))
        try:
            yield writing
        finally:
            os.close(writing)

    async def drained(self, name: str, seconds: float = 1.0) -> None:
        """Wait until all that `name` wrote is said.

        Not for ever: a process that left its group may hold the pipe.
        """
        reader = self._open.pop(name)
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.finished.wait(), seconds)
        reader.close()

    def close(self) -> None:
        """Stop reading; what came is said."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()


class _Reader:
    def __init__(self, pipe: int, say: Callable[[str], None]) -> None:
        self.finished = asyncio.Event()
        self._pipe = pipe
        self._say = say
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._say(line.rstrip(b"\r").decode(errors="replace"))

    def close(self) -> None:
        if self.finished.is_set():
            return
        self.finished.set()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        if self._rest:
            self._say(self._rest.decode(errors="replace"))
