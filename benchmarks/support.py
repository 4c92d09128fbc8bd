"""Meters and processes that the benchmarks share."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import redis

from agentq.worker.embedded import EmbeddedServer

WORKERS = Path(__file__).parent / "workers"
"""The folder of the modules that the worker processes run."""

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


# ── processes ────────────────────────────────────────────────────────────────────────────────────────


def end_on_signal() -> None:
    """Let SIGTERM end this process as Ctrl-C does: through every `finally`."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def embedded_server() -> Iterator[tuple[EmbeddedServer, redis.Redis]]:
    """A server on an empty folder, with the settings of `agentq up` (append-only file, fsync every second).

    Only the rewriting of that file is off: a rewrite that one case has caused must not run into another's
    time. Stopped and removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="agentq-bench-") as folder:
        server = EmbeddedServer.start(Path(folder))
        try:
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                client.config_set("auto-aof-rewrite-percentage", 0)
                yield server, client
        finally:
            server.stop()


@contextmanager
def worker(argv: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One worker process, whose words go to a file. Stopped at the end, killed when it does not."""
    path = os.pathsep.join(filter(None, [str(WORKERS), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as words:
        process = subprocess.Popen(
            argv,
            cwd=WORKERS,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,  # Ctrl-C is for this program, which then stops the worker
        )
        try:
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes], timeout: float = 15.0) -> None:
    """End a process and whatever it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
    if process.poll() is None:
        for pid in reversed(tree(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def await_worker(celery: Any, process: subprocess.Popen[bytes], log: Path, timeout: float = 60.0) -> None:
    """Return when the worker of this Celery app answers a ping: from then on it takes messages."""
    deadline = time.monotonic() + timeout
    while not celery.control.ping(timeout=0.3, limit=1):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the worker {process.args} did not start:\n{log.read_text()[-2000:]}")


def await_true(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Poll every 5 ms until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not done after {timeout:.0f} s")
        time.sleep(0.005)


# ── meters ───────────────────────────────────────────────────────────────────────────────────────────


def tree(pid: int) -> list[int]:
    """A process and its living descendants."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        with suppress(OSError):
            children = [
                child
                for task in Path(f"/proc/{current}/task").iterdir()
                for child in (task / "children").read_text().split()
            ]
            found.append(current)
            todo += map(int, children)
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, the reaped ones included."""
    ticks = 0
    for each in tree(pid):
        with suppress(OSError):
            # The name in parentheses may hold spaces; utime, stime, cutime, cstime follow it.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_A_SECOND


def aof_file(client: redis.Redis) -> Path:
    """The append-only file that the server writes now."""
    config = client.config_get("dir", "appenddirname", "appendfilename")
    folder = Path(config["dir"]) / config["appenddirname"]
    manifest = (folder / f"{config['appendfilename']}.manifest").read_text()
    names = [line.split()[1] for line in manifest.splitlines() if line.endswith("type i")]
    return folder / names[-1]


def aof_size(client: redis.Redis) -> int:
    """Bytes in that file, everything that was acknowledged included."""
    await_true(lambda: client.info("persistence")["aof_buffer_length"] == 0, 10, "the append-only file")
    return aof_file(client).stat().st_size


def shrink_aof(client: redis.Redis, above: int = 256_000_000) -> None:
    """Rewrite a large append-only file now, between two measurements, and wait until that is over."""
    if aof_size(client) > above:
        client.bgrewriteaof()
        await_true(
            lambda: (
                not any(
                    client.info("persistence")[name]
                    for name in ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
                )
            ),
            60,
            "the rewrite of the append-only file",
        )


# ── words ────────────────────────────────────────────────────────────────────────────────────────────


def spread(values: Sequence[float], digits: int = 2) -> str:
    """`median (least–most)`."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def machine(server: EmbeddedServer) -> str:
    """What the figures were taken on."""
    from importlib.metadata import version

    parts = " ".join(f"{name} {version(name)}" for name in ("celery", "kombu", "redis"))
    cpus = len(os.sched_getaffinity(0))
    return (
        f"{cpus} CPUs, load {os.getloadavg()[0]:.1f}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {parts}, {server.state.server} {server.state.version}"
    )


@contextmanager
def stack() -> Iterator[ExitStack]:
    """An `ExitStack` that also unwinds on SIGTERM."""
    end_on_signal()
    with ExitStack() as opened:
        yield opened
