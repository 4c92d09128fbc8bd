"""Rows: what a person asks a batch to do, one JSON object a line.

    {"custom_id": "t-17", "input": "…", "agent": "triage", "metadata": {}, "context": {}, "max_usd": "0.10"}

Only `input` is required. A file is read twice: the first pass looks at every line and names every
problem, so that nothing is submitted when one line is wrong; the second hands the rows over, one at a
time. What is kept in memory is the ids seen, not the rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, NoReturn

from agentq.core.errors import InputError
from agentq.core.money import to_nano

STDIN = "-"
FIELDS = ("input", "custom_id", "agent", "metadata", "context", "max_usd")
ROLES = ("system", "user", "assistant")
CONTEXT_BYTES_MAX = 8_000
CUSTOM_ID_CHARS_MAX = 256
SPOOL_BYTES_IN_MEMORY = 4_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One run as it was asked for. `custom_id` and `agent` are empty where the line left them out."""

    input: str | list[dict[str, str]]
    custom_id: str = ""
    agent: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    max_usd: Decimal | None = None

    def messages(self) -> list[dict[str, str]]:
        """The conversation that the run starts with: `{"role", "content"}` each."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return [dict(message) for message in self.input]

    @property
    def content_hash(self) -> str:
        """16 hex digits that are equal for equal rows, whatever their id and the order of their keys."""
        content = {
            "input": self.input,
            "agent": self.agent,
            "metadata": self.metadata,
            "context": self.context,
            "max_usd": None if self.max_usd is None else to_nano(self.max_usd),
        }
        return hashlib.sha256(_compact(content, sort_keys=True).encode()).hexdigest()[:16]


def parse_row(mapping: Mapping[str, Any]) -> Row:
    """Check one row and give it its types.

    Raises:
        ValueError: with one sentence that says what is wrong and what would be right.
    """
    for key in mapping:
        if key not in FIELDS:
            raise ValueError(f"unknown key {key!r}{nearest(key, FIELDS)}; a row has {', '.join(FIELDS)}")
    if "input" not in mapping:
        raise ValueError("the row has no 'input'")
    row = Row(
        input=_input(mapping["input"]),
        custom_id=_name(mapping, "custom_id"),
        agent=_name(mapping, "agent"),
        metadata=_object(mapping, "metadata"),
        context=_object(mapping, "context"),
        max_usd=_usd(mapping.get("max_usd")),
    )
    try:
        row.custom_id.encode()
        _ = row.content_hash
    except UnicodeEncodeError:
        raise ValueError("the row holds half of a surrogate pair, which is not text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the row cannot be written as JSON: {error}") from None
    size = len(_compact(row.context).encode())
    if size > CONTEXT_BYTES_MAX:
        raise ValueError(f"'context' is {size} bytes; the most is {CONTEXT_BYTES_MAX}, so pass ids, not data")
    return row


def read_rows(source: str) -> Iterator[tuple[str, Row]]:
    """The rows of a JSONL file (`-` is standard input), lazily, each with its `file:line`.

    Raises:
        InputError: at the first line that is not a row.
    """
    lines = _open(source)
    try:
        for number, parsed in _parsed(lines):
            where = f"{_label(source)}:{number}"
            if isinstance(parsed, str):
                raise InputError([f"{where}: {parsed}"])
            yield where, parsed
    finally:
        if source != STDIN:
            lines.close()


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


def nearest(word: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` for a word that resembles one of the known, or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


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
        raise ValueError(f"a row is a JSON object, not {_kind(value)}")
    return parse_row(value)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"not JSON: {word} is not a number")


def _input(value: Any) -> str | list[dict[str, str]]:
    match value:
        case str():
            if not value.strip():
                raise ValueError("'input' is empty")
            return value
        case Mapping():
            return _compact(value)
        case list() | tuple():
            return [_message(message, index) for index, message in enumerate(_some(value), start=1)]
        case _:
            raise ValueError(f"'input' is a string, a list of messages or an object, not {_kind(value)}")


def _some(messages: list[Any] | tuple[Any, ...]) -> list[Any]:
    if not any(isinstance(message, Mapping) and message.get("role") == "user" for message in messages):
        raise ValueError("'input' is a list without a message of the user")
    return list(messages)


def _message(value: Any, index: int) -> dict[str, str]:
    if not isinstance(value, Mapping) or set(value) != {"role", "content"}:
        raise ValueError(
            f"message {index} of 'input' is not an object with 'role' and 'content' and nothing else"
        )
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise ValueError(f"message {index} of 'input' has the role {role!r}; it is one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"the content of message {index} of 'input' is a string, not {_kind(content)}")
    return {"role": role, "content": content}


def _name(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is a string, not {_kind(value)}")
    if not value or len(value) > CUSTOM_ID_CHARS_MAX or not value.isprintable():
        raise ValueError(f"{key!r} is 1 to {CUSTOM_ID_CHARS_MAX} printable characters")
    return value


def _object(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} is an object, not {_kind(value)}")
    return dict(value)


def _usd(value: Any) -> Decimal | None:
    if value is None:
        return None
    if isinstance(value, float):
        raise ValueError(f"'max_usd' is money and never a float: write \"{value}\" in quotes")
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise ValueError(f"'max_usd' is an amount such as \"0.10\", not {_kind(value)}")
    try:
        to_nano(value)
    except ValueError as error:
        raise ValueError(f"'max_usd': {error}") from None
    return Decimal(value)


def _kind(value: Any) -> str:
    words: list[tuple[type | tuple[type, ...], str]] = [
        (type(None), "null"),
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "a string"),
        ((list, tuple), "a list"),
        (Mapping, "an object"),
    ]
    return next((word for kind, word in words if isinstance(value, kind)), type(value).__name__)


def _compact(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


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
