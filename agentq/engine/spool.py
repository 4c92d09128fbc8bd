"""Rows that were checked and are not written yet: in memory while they are few, else in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from agentq.core.errors import AgentQError
from agentq.engine.rows import Row

CHUNK = 500
CHUNK_BYTES = 4_000_000
"""Rows that are written with one script, and how long they may be together; one row may be longer."""
IN_MEMORY_BYTES = 4_000_000
"""A smaller load needs no file."""


class KeptRow(NamedTuple):
    """A row as the spool keeps it."""

    where: str
    custom_id: str
    content_hash: str
    priority: int
    payload: str


class Spool:
    """Rows in the order in which they were added. To be closed."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):  # what was not written for want of room is told already
            self._file.close()

    def add(self, where: str, row: Row, payload: str) -> None:
        """Keep a row: its id and its payload have neither tabs nor line ends in them.

        Raises:
            AgentQError: when there is no room for it.
        """
        # A file may be called by bytes that are no text.
        place = where.encode(errors="backslashreplace").replace(b"\t", b" ").replace(b"\n", b" ")
        rest = f"\t{row.custom_id}\t{row.content_hash}\t{row.priority or 0}\t{payload}\n"
        with _room():
            self._file.write(place + rest.encode())

    def rows(self) -> Iterator[KeptRow]:
        """All of them. Nothing may be added meanwhile.

        Raises:
            AgentQError: when there was no room for all.
        """
        with _room():
            self._file.seek(0)
        for line in self._file:
            where, custom_id, content_hash, priority, payload = line.decode().rstrip("\n").split("\t", 4)
            yield KeptRow(where, custom_id, content_hash, int(priority), payload)

    def chunks(self) -> Iterator[list[KeptRow]]:
        """The same, as many together as one script takes."""
        chunk: list[KeptRow] = []
        size = 0
        for kept in self.rows():
            if len(chunk) == CHUNK or (chunk and size + len(kept.payload) > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(kept)
            size += len(kept.payload)
        if chunk:
            yield chunk

    def where_is(self, custom_id: str) -> str:
        """Where the row of this id stands; empty when there is none. All rows are looked through."""
        found = next((kept.where for kept in self.rows() if kept.custom_id == custom_id), "")
        self._file.seek(0, os.SEEK_END)
        return found


@contextmanager
def _room() -> Iterator[None]:
    """Say in words that there is none for the file.

    Raises:
        AgentQError: where an OSError was.
    """
    try:
        yield
    except OSError as error:
        raise AgentQError(
            f"the rows do not fit into a temporary file: {(error.strerror or str(error)).lower()}",
            hint="nothing was submitted; set TMPDIR to a folder with more room",
        ) from error
