"""`FakeProvider`: a model provider on this machine, over real HTTP."""

from __future__ import annotations

import errno
import random
import socket
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentq.core.errors import UsageError
from agentq.testing.provider.bill import Bill
from agentq.testing.provider.exchange import Service
from agentq.testing.provider.fault import AnyFault, Fault, Faults
from agentq.testing.provider.handler import Handler
from agentq.testing.provider.latency import Latency, seconds
from agentq.testing.provider.limits import Limits
from agentq.testing.provider.request import Request
from agentq.testing.provider.script import Player, Script

HOST = "127.0.0.1"
REQUESTS_KEPT = 10_000
_JOIN_SECONDS = 5.0


class FakeProvider:
    """A server that speaks Chat Completions, Responses and Messages as the official services do.

        with FakeProvider() as provider:
            os.environ["OPENAI_BASE_URL"] = os.environ["ANTHROPIC_BASE_URL"] = provider.url

    It checks requests as they do, answers from a script, and keeps a bill. `limits`, `latency`, `faults` and
    `script` may be changed while it runs.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        keys: Collection[str] | None = None,
        models: Collection[str] | None = None,
        faults: Iterable[AnyFault] | AnyFault = (),
        limits: Limits | None = None,
        latency: Latency = 0.0,
        window: int | None = None,
        extra_parameters: Collection[str] = (),
        bill_file: str | Path | None = None,
        keep: int = REQUESTS_KEPT,
        seed: int = 0,
    ) -> None:
        """Describe a server; `start` or `with` starts it.

        Args:
            script: a list of turns, such lists by model, or a function from a `Request` to a turn. Without
                one the first tool is called, and then the last text of the user is quoted.
            port: 0 for any that is free.
            keys: the API keys that are taken; None: any that is not empty.
            models: the models that there are; None: any.
            faults: names, or `Fault` objects.
            limits: what each key may use of each model.
            latency: seconds before an answer, or a distribution: `lognormal(0.4, 0.5)`.
            window: the context window of every model, in tokens; None: no bound.
            extra_parameters: what requests may have beside what the official services know.
            bill_file: a file to which each entry of the bill is added as a line of JSON.
            keep: how many requests are kept in `requests`.
            seed: of everything that is drawn.

        Raises:
            UsageError: when a turn or a fault is none.
        """
        self._source = random.Random(seed)  # noqa: S311 - latencies, not secrets
        self.service = Service(
            Player(script),
            Faults(faults, self._source),
            limits,
            models,
            None if keys is None else frozenset([keys] if isinstance(keys, str) else keys),
            window,
            frozenset(extra_parameters),
        )
        self.latency: Latency = latency
        self.bill = Bill()
        self._bill_file = bill_file
        self._port = port
        self._kept: deque[Request] = deque(maxlen=keep)
        self._count = 0
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Listen, and answer from threads of its own.

        Raises:
            UsageError: when the port is in use, or the bill's file cannot be written.
        """
        if self._server is not None:
            return self
        try:
            server = _Server((HOST, self._port), Handler, self)
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise UsageError(
                f"port {self._port} of {HOST} {reason}", hint="--port 0 takes one that is free"
            ) from None
        except OverflowError:
            raise UsageError(f"{self._port} is no port: it is 0 to 65535") from None
        try:
            self.bill = Bill(self._bill_file)
        except OSError as error:
            server.server_close()
            raise UsageError(f"the bill cannot be written to {self._bill_file}: {error.strerror}") from None
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="fake provider", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and close every connection. Bill and requests can still be read."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.over.set()
        server.shutdown()
        server.server_close()
        server.hang_up()
        self._thread.join(_JOIN_SECONDS)
        self.bill.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """Where it listens.

        Raises:
            UsageError: when it does not run.
        """
        if self._server is None:
            raise UsageError(
                "the fake provider does not run", hint="start() it, or use it in a with statement"
            )
        port: int = self._server.server_address[1]
        return port

    @property
    def url(self) -> str:
        """The base URL for either SDK, and for `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL`."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """The last requests that could be read, the oldest first, with those that were then refused."""
        with self._lock:
            return list(self._kept)

    @property
    def limits(self) -> Limits | None:
        """What each key may use of each model."""
        return self.service.limits

    @limits.setter
    def limits(self, limits: Limits | None) -> None:
        self.service.limits = limits

    @property
    def faults(self) -> list[Fault]:
        """The faults that are switched on."""
        return list(self.service.faults.all)

    @faults.setter
    def faults(self, faults: Iterable[AnyFault] | AnyFault) -> None:
        """Switch on these and no others; what they count begins anew."""
        self.service.faults = Faults(faults, self._source)

    @property
    def script(self) -> Player:
        """Who answers."""
        return self.service.player

    @script.setter
    def script(self, script: Script | Player | None) -> None:
        self.service.player = script if isinstance(script, Player) else Player(script)

    def draw_latency(self) -> float:
        """How long the next answer takes, in seconds."""
        with self._lock:
            return seconds(self.latency, self._source)

    def next_number(self) -> int:
        """The number of a request that has come."""
        with self._lock:
            self._count += 1
            return self._count

    def keep(self, request: Request) -> None:
        """Remember a request."""
        with self._lock:
            self._kept.append(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1_024
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[Handler], provider: FakeProvider) -> None:
        self.provider = provider
        self.over = threading.Event()
        self._lines: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._lock:
            self._lines.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._lines.discard(request)

    def hang_up(self) -> None:
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no news; anything else is a bug, and shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
