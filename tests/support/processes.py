"""Real processes for tests: each in a group of its own, killed by its id, always reaped."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, Signals

import pytest


class ProcessGroup:
    """One started program and whatever it starts in its group."""

    def __init__(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        # A file and not a pipe: nobody has to read it for the process to go on.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        """All that it has written so far, stdout and stderr."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def signal(self, number: Signals) -> None:
        """To the process itself."""
        self._popen.send_signal(number)

    def signal_group(self, number: Signals) -> None:
        """To the process and all in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, timeout: float = 30.0) -> int:
        """The exit code; an AssertionError with the output when it does not end."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s:\n{self.output}") from None

    def end(self) -> None:
        """Kill the group and reap the process. Harmless when it is gone."""
        self.signal_group(SIGKILL)
        self._popen.wait()
        self._output.close()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead but not yet reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        shown = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return bool(shown.stdout.strip()) and not shown.stdout.strip().startswith("Z")
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


StartProcess = Callable[..., ProcessGroup]


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """`start_process(argv, env=…, cwd=…)`; every group is killed when the test ends."""
    started: list[ProcessGroup] = []

    def start(argv: Sequence[str | Path], **options) -> ProcessGroup:
        started.append(ProcessGroup(argv, **options))
        return started[-1]

    yield start
    for group in reversed(started):
        group.end()
