"""All files of one call of `agentq results`, written together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentq.cli.console import plural
from agentq.cli.resultfile.form import check_form
from agentq.cli.resultfile.linefile import LineFile
from agentq.cli.resultfile.retryfile import RetryFile
from agentq.cli.resultfile.sink import ResultSink, Sink
from agentq.cli.resultfile.stdout import OnStdout
from agentq.cli.writable import check_writable
from agentq.core.errors import UsageError

if TYPE_CHECKING:
    from agentq.app import Batch, Result
    from agentq.cli.console import Console

STDOUT = "-"


@dataclass
class Outputs:
    """Where results go. Use it as a context: until then no file is touched.

    Each file knows by itself what it has, so that a call that was killed between two of them is made good by
    the next.
    """

    main: ResultSink
    errors: LineFile | None = None
    retry: RetryFile | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def choose(
        cls,
        batch: Batch,
        output: str,
        *,
        errors: str | None = None,
        retry: str | None = None,
        form: str | None = None,
        events: bool = False,
    ) -> Self:
        """The files of these names; `-` for the results is standard output, with `events` as events.

        Raises:
            UsageError: when a name cannot be, or there are two uses for one file.
        """
        files = [name for name in (output, errors, retry) if name is not None and name != STDOUT]
        if STDOUT in {errors, retry}:
            raise UsageError("standard output is for the results: --errors and --retry-file need a file")
        for name in files:
            check_form(name)
            check_writable(Path(name))
        if len({Path(name).resolve() for name in files}) < len(files):
            raise UsageError("results, errors and lines to retry go into different files")
        on_stdout = output == STDOUT
        return cls(
            main=OnStdout(form or "jsonl", events=events)
            if on_stdout
            else LineFile(Path(output), check_form(output, form)),
            errors=None if errors is None else LineFile(Path(errors), check_form(errors)),
            retry=None if retry is None else RetryFile(Path(retry), batch.input_lines),
        )

    @property
    def files(self) -> list[LineFile | RetryFile]:
        """Those that are files."""
        return [sink for sink in self._sinks if isinstance(sink, LineFile | RetryFile)]

    @property
    def _sinks(self) -> list[ResultSink | RetryFile]:
        return [sink for sink in (self.main, self.errors, self.retry) if sink is not None]

    def __enter__(self) -> Self:
        with self._stack:
            # What is there may be refused: no new file is made before that.
            for sink in sorted(self._sinks, key=self._is_new):
                self._stack.enter_context(sink)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _is_new(self, sink: Sink) -> bool:
        return any(sink is file and not file.path.exists() for file in self.files)

    def has(self, run_id: str) -> bool:
        """Whether there is a line of a run among the results."""
        return run_id in self.main.index

    def take(self, result: Result) -> None:
        """Take a result, for each file that it belongs into."""
        self.main.add(result)
        if self.errors is not None and result.error is not None:
            self.errors.add(result)
        if self.retry is not None:
            self.retry.add(result)

    def flush(self) -> None:
        """Write what was taken."""
        for sink in self._sinks:
            sink.flush()

    def say(self, console: Console, batch: str) -> None:
        """Say what was written, and what may not be expected."""
        for file in self.files:
            what = "input line" if file is self.retry else "result"
            already = f", {file.were_there} were there" if file.were_there else ""
            console.say(f"{file.path}: {plural(file.written, what)} written{already}")
        for table in (file for file in self.files if isinstance(file, LineFile) and file.left_out):
            names = ", ".join(f"output.{name} ({count})" for name, count in table.left_out.items())
            console.say(f"{table.path} has no column for {names}: a new file, or JSONL, has all of them")
        if self.retry is not None and self.retry.gone:
            gone = plural(self.retry.gone, "failure")
            console.say(f"{self.retry.path}: of {gone} the input is kept no longer")
            console.say("  take it from the file that was submitted")
        if self.retry is not None and self.retry.stale:
            console.say(
                f"{self.retry.path}: {self.retry.stale} of its lines are of rows that need no retry any more"
            )
        elif self.retry is not None and self.retry.written:
            console.say(f"  agentq submit {self.retry.path} --batch {batch}-again")

    def as_list(self) -> list[dict[str, Any]]:
        """The files for JSON."""
        return [
            {"file": str(file.path), "written": file.written, "were_there": file.were_there}
            for file in self.files
        ]
