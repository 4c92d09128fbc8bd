"""The lines of an input: a file, a pipe or standard input, gzipped or not, one line in memory at a time."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from agentq.core.errors import InputError
from agentq.core.words import nearest

STDIN = "-"
LINE_BYTES_MAX = 10_000_000

_BUFFER_BYTES = 1 << 18
_SKIPPED_AT_ONCE = 1 << 20
_NEIGHBOURS_MAX = 10_000
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"\xff\xfe": "this is UTF-16; save it as UTF-8",
    b"\xfe\xff": "this is UTF-16; save it as UTF-8",
    b"PK\x03\x04": "this is a ZIP archive or a workbook; unpack it, or save the sheet as CSV",
    b"PAR1": "this is Parquet; write it as CSV or JSONL",
    b"\x28\xb5\x2f\xfd": "this is compressed by zstd; unpack it, or use gzip",
    b"BZh": "this is compressed by bzip2; unpack it, or use gzip",
    b"\xfd7zXZ": "this is compressed by xz; unpack it, or use gzip",
}


class Lines:
    """An input that is read once, from its first line to its last."""

    def __init__(self, label: str, stream: BinaryIO) -> None:
        self.label = label
        """What an error calls it: the path, or `stdin`."""
        self.number = 0
        """The line that was read last, from 1."""
        self._stream = stream
        self._ahead: bytes | None = None

    def first(self) -> bytes:
        """The first line that is not blank, or its beginning where it is too long; it is still to be read.

        To be called before anything is read.

        Raises:
            InputError: when the input cannot be read.
        """
        if self._ahead is None:
            line = self._take()
            while line.isspace():
                line = self._take()
            self._ahead = line
        return self._ahead

    def read(self) -> bytes:
        """The next line with its ending, or nothing at the end.

        Raises:
            ValueError: for a line that is too long; the next one can be read.
            InputError: when the input cannot be read on.
        """
        line = self._ahead
        if line is None:
            line = self._take()
        else:
            self._ahead = None
        if len(line) > LINE_BYTES_MAX:
            self._skip(line)
            raise ValueError(f"the line is longer than {LINE_BYTES_MAX // 1_000_000} MB")
        return line

    def _take(self) -> bytes:
        line = self._piece(LINE_BYTES_MAX + 1)
        if line:
            self.number += 1
            if self.number == 1:
                line = line.removeprefix(_BOM)
                if not line:
                    return self._take()
        return line

    def _skip(self, line: bytes) -> None:
        while line and not line.endswith(b"\n"):
            line = self._piece(_SKIPPED_AT_ONCE)

    def _piece(self, size: int) -> bytes:
        try:
            return self._stream.readline(size)
        except EOFError:
            problem = "the gzip data ends in the middle: the file is not complete"
        except (gzip.BadGzipFile, zlib.error) as error:
            problem = f"the gzip data is damaged: {error}"
        except OSError as error:
            problem = f"it cannot be read on: {(error.strerror or str(error)).lower()}"
        raise InputError([f"{self.label}:{self.number + 1}: {problem}"])


@contextmanager
def open_lines(source: str) -> Iterator[Lines]:
    """The lines of a file, or of standard input.

    Args:
        source: a path, or `-`.

    Raises:
        InputError: when it cannot be opened, or is nothing that has lines of text.
    """
    label = "stdin" if source == STDIN else source
    raw = _stdin() if source == STDIN else _open(source)
    try:
        head = _head(raw)
        stream: Any = io.BufferedReader(_Rejoined(head, raw), _BUFFER_BYTES)
        if head.startswith(_GZIP):
            stream = io.BufferedReader(_Unzipped(stream), _BUFFER_BYTES)
        elif source.lower().endswith(".gz") and head:
            raise InputError([f"{label}: its name ends in .gz, but it is not gzip"])
        lines = Lines(label, stream)
        first = lines.first()
        for magic, sentence in _OTHERS.items():
            if first.startswith(magic):
                raise InputError([f"{label}: {sentence}"])
        yield lines
    finally:
        if source != STDIN:
            raw.close()


class _Rejoined(io.RawIOBase):
    """A stream whose first bytes were read already. Closing it leaves the stream open."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or _read_some(self._rest, len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Unzipped(io.RawIOBase):
    """What gzip data holds."""

    def __init__(self, stream: BinaryIO) -> None:
        self._gzip = gzip.GzipFile(fileobj=stream, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._gzip.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _read_some(stream: BinaryIO, size: int) -> bytes:
    """What is there, up to a size: who types into a pipe is not waited for until it is full."""
    return cast(io.BufferedReader, stream).read1(size)


def _head(stream: BinaryIO) -> bytes:
    head = b""
    while len(head) < len(_GZIP) and (more := _read_some(stream, len(_GZIP) - len(head))):
        head += more
    return head


def _stdin() -> BinaryIO:
    if sys.stdin is None:  # a service, or `<&-`
        raise InputError(["stdin: it is closed; name a file, or pipe the rows in"])
    return sys.stdin.buffer


def _open(source: str) -> BinaryIO:
    path = Path(source)
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        problem = (error.strerror or str(error)).lower() + _neighbour(path)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
    except ValueError as error:
        problem = str(error)
    raise InputError([f"{source}: {problem}"])


def _neighbour(path: Path) -> str:
    try:
        return nearest(path.name, [near.name for near in islice(path.parent.iterdir(), _NEIGHBOURS_MAX)])
    except OSError:
        return ""
