"""Forms in which a line is a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentq.engine.input.lines import Lines
from agentq.engine.problem import sentence
from agentq.engine.rows import Row


def each_line(lines: Lines, parse: Callable[[str, str], Row]) -> Iterator[tuple[str, Row | str]]:
    """The rows of lines that are not blank, or what is wrong with them.

    Args:
        lines: where they come from.
        parse: makes a row of a line, without its ending, and of where it is. What is wrong is a ValueError.

    Raises:
        InputError: when the input cannot be read on.
    """
    while True:
        try:
            raw = lines.read()
            if not raw:
                return
            text = decode(raw)
            if text.isspace():
                continue
            where = f"{lines.label}:{lines.number}"
            found: Row | str = parse(text.rstrip("\r\n"), where)
        except ValueError as error:
            where, found = f"{lines.label}:{lines.number}", sentence(error)
        yield where, found


def decode(raw: bytes) -> str:
    """The text of a line.

    Raises:
        ValueError: when it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
