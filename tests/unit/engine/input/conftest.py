"""An input in the folder of the test, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentq.core.errors import InputError
from agentq.engine.input import read_rows
from agentq.engine.rows import Row

Found = list[tuple[str, Row | str]]


class Input:
    """One file. `name` is its path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = ""

    def write(self, data: bytes | str, name: str = "in.jsonl") -> str:
        path = self._folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        self.name = str(path)
        return self.name

    def write_lines(self, *rows: Any, name: str = "in.jsonl") -> str:
        return self.write("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), name)

    def found(self, **options: Any) -> list[tuple[int, Row | str]]:
        """The line of each row, and the row or what is wrong with it."""
        prefix = f"{self.name}:"
        read = list(read_rows(self.name, **options))
        assert all(where.startswith(prefix) for where, _ in read)
        return [(int(where.removeprefix(prefix)), row) for where, row in read]

    def rows(self, **options: Any) -> list[Row]:
        """The rows, when nothing is wrong."""
        rows = [row for _, row in read_rows(self.name, **options)]
        assert not [row for row in rows if isinstance(row, str)]
        return [row for row in rows if isinstance(row, Row)]

    def inputs(self, **options: Any) -> list[Any]:
        return [row.input for row in self.rows(**options)]

    def problem(self, **options: Any) -> str:
        """What is wrong with the only row."""
        ((_, problem),) = self.found(**options)
        assert isinstance(problem, str)
        return problem

    def refusal(self, **options: Any) -> str:
        """What is wrong with the input as a whole."""
        with pytest.raises(InputError) as caught:
            list(read_rows(self.name, **options))
        (problem,) = caught.value.problems
        return problem.removeprefix(self.name)


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts bytes into standard input, in pieces of one byte: nothing may depend on how much is there."""
    import io

    class Dripping(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self._rest = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            data = self._rest.read(1)
            buffer[: len(data)] = data
            return len(data)

    def put(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Dripping(data))))

    return put
