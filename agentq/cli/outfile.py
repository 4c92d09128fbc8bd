"""A file of results that can be written again and again and only grows by what is new.

A run that was retried since has another result: it is appended too, and the last line of a run counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from agentq.cli.console import encode, plural
from agentq.cli.resultline import result_line
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Batch
    from agentq.cli.session import Session

STDOUT = "-"
_OURS = '{"id": "run_'
"""How every line begins."""


def check_output(target: str) -> None:
    """Return when results can be written to `target`, as far as that can be known before there are any.

    Raises:
        UsageError: when it holds something else, or its folder does not exist.
    """
    path = Path(target)
    if target != STDOUT and not path.parent.is_dir():
        raise UsageError(f"{target} cannot be written: there is no folder {path.parent}")
    if target != STDOUT:
        ids_present(path)


def write_results(session: Session, batch: Batch, target: str) -> None:
    """Append the ended runs that `target` does not have yet, as they are; `-` is stdout."""
    if target == STDOUT:
        for result in batch.results():
            click.echo(encode(result_line(result)))
        return
    path = Path(target)
    present = ids_present(path)
    written = 0
    try:
        with path.open("a", encoding="utf-8") as file:
            for result in batch.results():
                if result.generation > present.get(result.run_id, -1):
                    file.write(encode(result_line(result)) + "\n")
                    written += 1
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    already = f", {len(present)} were there" if present else ""
    session.console.say(f"{target}: {plural(written, 'result')} written{already}")


def ids_present(path: Path) -> dict[str, int]:
    """The runs in a file of results, each with its latest generation there.

    Half a line at its end, left by a crash, is cut off.

    Raises:
        UsageError: when the file holds something else, or cannot be read; it is as it was.
    """
    if not path.is_file():  # none yet, or a pipe or a device: nothing to read back
        return {}
    try:
        with path.open("rb+") as file:
            present, end = _whole_lines(file)
            if end < file.seek(0, 2):
                file.truncate(end)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not a file of results", hint="choose another file") from None
    return present


def _whole_lines(file: BinaryIO) -> tuple[dict[str, int], int]:
    """The runs in the whole lines with their generations, and where these end. Nothing is written.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: when anything in it is not ours, also in half a line.
    """
    present: dict[str, int] = {}
    end = 0
    for line in file:
        text = line.decode(errors="ignore")  # half a line may end within a letter
        if not text.startswith(_OURS[: len(text)]) and text.strip():
            raise ValueError("not a line of results")
        if not line.endswith(b"\n"):
            break
        if text.strip():
            run = json.loads(line)
            generation = int(run.get("agentq", {}).get("generation", 0))
            present[run["id"]] = max(generation, present.get(run["id"], 0))
        end += len(line)
    return present, end
