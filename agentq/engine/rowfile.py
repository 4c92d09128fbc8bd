"""Row files: JSONL that is read twice, so that one wrong line submits nothing.

The first pass looks at every line and names every problem; the second hands the rows over, one at a time.
What is kept in memory is the ids seen, not the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import IO, NoReturn

from agentq.core.errors import InputError
from agentq.core.words import nearest
from agentq.engine.rows import Row, kind_of, parse_row

STDIN = "-"
SPOOL_BYTES_IN_MEMORY = 4_000_000


class RowFile:
    """A JSONL input in which every line is known to be good. Iterate it as often as needed, then close it."""

    def __init__(self, source: str, lines: IO[bytes], *, agent: str, max_usd: Decimal | None) -> None:
        self._label = _label(source)
        self._lines = lines
        self._agent = agent
        self._max_usd = max_usd
        self.total = 0

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.total

    def close(self) -> None:
        """Let go of the file."""
        self._lines.close()

    def __iter__(self) -> Iterator[Row]:
        """The rows in the order of the lines, each with its `custom_id` and `agent` filled in.

        Raises:
            InputError: when the file was changed after it was checked.
        """
        self._lines.seek(0)
        ids = _Ids()
        for number, parsed in _parsed(self._lines):
            if isinstance(parsed, str):
                raise InputError([f"{self._label}:{number}: the file changed while it was read: {parsed}"])
            yield replace(
                parsed,
                # Of the line as it is written: the same file under another cap is a conflict, not new runs.
                custom_id=ids.claim(parsed, number),
                agent=parsed.agent or self._agent,
                max_usd=self._max_usd if parsed.max_usd is None else parsed.max_usd,
                where=f"{self._label}:{number}",
            )

    def check(self, agents: Collection[str] | None) -> None:
        """Look at every line once.

        Raises:
            InputError: with all problems, as `file:line: message`.
        """
        problems: list[str] = []
        ids = _Ids()
        for number, parsed in _parsed(self._lines):
            problem = parsed if isinstance(parsed, str) else self._problem(parsed, number, agents, ids)
            if problem:
                problems.append(f"{self._label}:{number}: {problem}")
            self.total += 1
        if not self.total:
            problems.append(f"{self._label}: there is no row in it")
        if problems:
            raise InputError(problems)

    def _problem(self, parsed: Row, number: int, agents: Collection[str] | None, ids: _Ids) -> str:
        try:
            ids.claim(parsed, number)
        except ValueError as error:
            return str(error)
        agent = parsed.agent or self._agent
        if not agent:
            return "no agent: name one with --agent, or in the row as 'agent'"
        if agents is not None and agent not in agents:
            known = ", ".join(sorted(agents)) or "none"
            return f"unknown agent {agent!r}{nearest(agent, agents)}; this app has {known}"
        return ""


def load_rows(
    source: str, *, agents: Collection[str] | None = None, agent: str = "", max_usd: Decimal | None = None
) -> RowFile:
    """Check a whole input and give it back ready to be read again.

    What can be read only once (standard input, a pipe) is copied to a temporary file first.

    Args:
        source: the path of a JSONL file, or `-`.
        agents: the names a row may use; None when they are not known here.
        agent: the agent of rows that name none.
        max_usd: the cap of rows that name none.

    Raises:
        InputError: with every problem of the input; nothing may be submitted then.
    """
    rows = RowFile(source, _rewindable(source), agent=agent, max_usd=max_usd)
    try:
        rows.check(agents)
    except BaseException:
        rows.close()
        raise
    return rows


class _Ids:
    """The ids of one pass: where each was, and a name for rows that came without one."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._copies: dict[str, int] = {}

    def claim(self, row: Row, number: int) -> str:
        custom_id = row.custom_id or self._derived(row.content_hash)
        if custom_id in self._lines:
            raise ValueError(f"custom_id {custom_id!r} is already on line {self._lines[custom_id]}")
        self._lines[custom_id] = number
        return custom_id

    def _derived(self, content_hash: str) -> str:
        copy = self._copies[content_hash] = self._copies.get(content_hash, 0) + 1
        return content_hash if copy == 1 else f"{content_hash}-{copy}"


def _parsed(lines: IO[bytes]) -> Iterator[tuple[int, Row | str]]:
    """Each line that is not blank: its number, and the row or what is wrong with it."""
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            yield number, _parse_line(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw)
        except ValueError as error:
            yield number, str(error)


def _parse_line(raw: bytes) -> Row:
    try:
        text = raw.decode().rstrip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a row is a JSON object, not {kind_of(value)}")
    return parse_row(value)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"not JSON: {word} is not a number")


def _label(source: str) -> str:
    return "stdin" if source == STDIN else source


def _open(source: str) -> IO[bytes]:
    if source == STDIN:
        return sys.stdin.buffer
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise InputError([f"{source}: {(error.strerror or str(error)).lower()}"]) from None


def _rewindable(source: str) -> IO[bytes]:
    lines = _open(source)
    if source != STDIN and stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
        return lines
    copy: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_IN_MEMORY)  # noqa: SIM115
    shutil.copyfileobj(lines, copy)
    if source != STDIN:
        lines.close()
    copy.seek(0)
    return copy
