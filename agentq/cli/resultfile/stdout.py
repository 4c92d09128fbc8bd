"""Results on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import click

from agentq.cli.console import encode
from agentq.cli.resultfile.form import make_form
from agentq.cli.resultfile.sink import ResultSink
from agentq.cli.resultline import result_line

if TYPE_CHECKING:
    from agentq.app import Result


class OnStdout(ResultSink):
    """JSON lines or CSV; with `events` as the events of a stream."""

    def __init__(self, form: str, *, events: bool = False) -> None:
        super().__init__(_Stdout(), _as_events if events else make_form(form).encode)


class _Stdout(AbstractContextManager["_Stdout"]):
    """Standard output, which is there before and stays."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def append(self, data: bytes) -> None:
        click.echo(data, nl=False)


def _as_events(results: Sequence[Result]) -> bytes:
    text = "".join(encode({"type": "row", **result_line(result)}) + "\n" for result in results)
    return text.encode(errors="backslashreplace")
