"""A file of results that can be written again and again and only grows by what is new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentq.cli.console import encode
from agentq.cli.resultline import result_line
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session

STDOUT = "-"


def write_results(session: Session, batch: Batch, target: str) -> None:
    """Append the ended runs that `target` does not have yet; `-` is stdout."""
    lines = (encode(result_line(result)) for result in batch.results())
    if target == STDOUT:
        for line in lines:
            click.echo(line)
        return
    path = Path(target)
    present = ids_present(path)
    written = 0
    try:
        with path.open("a", encoding="utf-8") as file:
            for line in lines:
                if json.loads(line)["id"] not in present:
                    file.write(line + "\n")
                    written += 1
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    already = f", {len(present)} were there" if present else ""
    session.console.say(f"{target}: {written} results written{already}")


def ids_present(path: Path) -> set[str]:
    """The runs in a file of results. Half a line at its end, left by a crash, is cut off.

    Raises:
        UsageError: when the file holds something else.
    """
    if not path.exists():
        return set()
    try:
        _cut_half_line(path)
        with path.open(encoding="utf-8") as file:
            return {json.loads(line)["id"] for line in file if line.strip()}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a file of results", hint="choose another file") from None


def _cut_half_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = size = file.seek(0, 2)
        while end:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.seek(end)
        # Only what begins like one of our lines is ours to cut; anything else is a wrong file.
        if end < size and file.read(1) == b"{":
            file.truncate(end)
