"""Results on standard output."""

from __future__ import annotations

from collections.abc import Sequence
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
        super().__init__()
        self._form = make_form(form)
        self._events = events

    def _write(self, results: Sequence[Result]) -> None:
        if not self._events:
            click.echo(self._form.encode(results), nl=False)
            return
        for result in results:
            line = encode({"type": "row", **result_line(result)})
            click.echo(line.encode(errors="backslashreplace"))
