"""A file that only grows: locked while it is written, continued behind its last whole line."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from agentq.cli.writable import check_writable, lock, unwritable
from agentq.core.errors import UsageError

Reader = Callable[[BinaryIO], int]
"""Reads a file from its beginning and answers where its last whole line ends.

Raises:
    ValueError, KeyError, TypeError, AttributeError: when anything in it is not ours.
"""
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError)


class GrowingFile:
    """Use it as a context. A pipe or a device is written too; there is nothing to read back.

    Args:
        path: the file.
        reads: how what is there is read.
        is_a: what it is: "a file of results".
    """

    def __init__(self, path: Path, reads: Reader, is_a: str) -> None:
        self.path = path
        self._reads = reads
        self._is_a = is_a
        self._file: BinaryIO | None = None

    def check(self) -> None:
        """Return when it can be continued, as far as that can be known before there is anything to write.

        Raises:
            UsageError: when it holds something else, or cannot be written. It is as it was.
        """
        check_writable(self.path)
        if self.path.is_file():
            try:
                with self.path.open("rb") as file:
                    self._read(file)
            except OSError as error:
                raise UsageError(f"{self.path} cannot be read: {error.strerror}") from None

    def __enter__(self) -> Self:
        """Open it, read what is there and cut off what a crash has left.

        Raises:
            UsageError: when it holds something else or cannot be written; it is as it was.
        """
        try:
            # A pipe cannot be opened for both.
            file = self.path.open("ab+" if self.path.is_file() or not self.path.exists() else "ab")
            try:
                self._open(file)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            # All that was appended is written already. What could not be is tried again here, and was told.
            with suppress(OSError):
                self._file.close()
            self._file = None

    def append(self, data: bytes) -> None:
        """Put whole lines behind what is there. They are on the disk when this returns.

        Raises:
            AgentQError: when it cannot be written. What is there stays.
        """
        if self._file is None:
            raise RuntimeError("the file is not open")
        try:
            self._file.write(data)
            self._file.flush()
            if self.path.is_file():
                os.fsync(self._file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _open(self, file: BinaryIO) -> None:
        if not self.path.is_file():
            return
        lock(file, self.path)
        file.seek(0)
        end = self._read(file)
        if end < file.seek(0, os.SEEK_END):
            file.truncate(end)

    def _read(self, file: BinaryIO) -> int:
        try:
            return self._reads(file)
        except _FOREIGN:
            raise UsageError(f"{self.path} is not {self._is_a}", hint="choose another file") from None
