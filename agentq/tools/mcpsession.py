"""One lasting session with an MCP server, on a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from agentq.core.errors import UnavailableError
from agentq.tools.endings import NotStartedError, OutOfTimeError, ToolFailedError
from agentq.tools.result import described

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.client.client import Client
    from mcp.client.session import IncomingMessage
    from mcp_types import CallToolResult, Tool

log = logging.getLogger("agentq.mcp")

T = TypeVar("T")

MAX_TOOLS = 512
"""Of one server; more are left out."""
_PAGES = 64
_STEADY_SECONDS = 30.0
"""A session that has lasted so long has not failed, when it ends."""
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_CLOSE_SECONDS = 8.0
"""The server is asked to end, told to, and killed within less."""


class Address:
    """Where a server is: a command to start, or a URL."""

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self.env = dict(env or {})
        self.cwd = cwd
        self.url = url
        self.headers = dict(headers or {})

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """Both directions of a connection, for as long as the context lasts."""
        if self.url:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            async with (
                create_mcp_http_client(headers=self.headers) as http,
                streamable_http_client(self.url, http_client=http) as streams,
            ):
                yield streams
            return
        from mcp.client.stdio import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=self.command[0], args=self.command[1:], env=self.env, cwd=self.cwd
        )
        async with stdio_client(parameters, errlog=_error_log()) as streams:
            yield streams


def _error_log() -> Any:
    """Where the server's stderr goes: to this process's, which a worker's logging may have replaced."""
    try:
        sys.__stderr__.fileno()  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL
    return sys.__stderr__


class _Ending:
    """A stream for reading that says when nobody reads it any more, because it has ended."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _Ending:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> _Ending:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self._ended()
        ended: bool | None = await self._stream.__aexit__(*error)
        return ended


class _Connection:
    """One connection, from its handshake to its end. Lives on the session's loop, in a task of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.over = asyncio.Event()
        self.born = self.ended = self._loop.time()
        self.client: Client | None = None
        self.ready: asyncio.Future[Client] = self._loop.create_future()
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody has looked
        self.task = asyncio.create_task(self._live())

    def end(self) -> None:
        """Let the connection end, and its server with it."""
        self._stop.set()

    async def _live(self) -> None:
        from mcp.client.client import Client

        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._session.connect_s):
                    made = Client(self._transport(), message_handler=self._heard)
                    client = await stack.enter_async_context(made)
                    self._session.named(await self.list(client))
                self.client = client
                self.ready.set_result(client)
                await self._until_over(client)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the connection is over
            first = _first_of(error)
            if self.ready.done():
                log.warning("mcp_session_ended server=%s error=%s", self._session.title, described(first))
            elif isinstance(first, TimeoutError):
                late = f"no answer within {self._session.connect_s:g} s"
                self.ready.set_exception(self._session.unavailable(late))
            else:
                self.ready.set_exception(self._session.unavailable(described(first)))
        finally:
            self._is_over()
            if not self.ready.done():
                self.ready.set_exception(self._session.unavailable("the session was ended"))

    async def _until_over(self, client: Client) -> None:
        listening = asyncio.create_task(self._listen(client))
        stops = [asyncio.create_task(event.wait()) for event in (self._stop, self.over)]
        try:
            await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, *stops):
                task.cancel()
            await asyncio.gather(listening, *stops, return_exceptions=True)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        async with self._session.address.streams() as (reading, writing):
            yield _Ending(reading, self._is_over), writing

    def _is_over(self) -> None:
        if not self.over.is_set():
            self.ended = self._loop.time()
            self.over.set()

    async def list(self, client: Client) -> list[Tool]:
        """All tools of the server, page by page."""
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        if cursor is not None or len(found) > MAX_TOOLS:
            log.warning("mcp_tools_left_out kept=%d", MAX_TOOLS)
        return found[:MAX_TOOLS]

    async def _heard(self, message: IncomingMessage) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._session.changed(self)

    async def _listen(self, client: Client) -> None:
        """Newer servers tell what has changed to those who ask; older ones tell it anyhow, or not at all."""
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._session.changed(self)


class Session:
    """A session with one server: begun when it is first needed, begun again when the server has died.

    Safe to use from many threads. A process that is forked from its owner begins one of its own.
    """

    def __init__(self, title: str, address: Address, *, connect_s: float) -> None:
        self.title = title
        self.address = address
        self.connect_s = connect_s
        self.tools: list[Tool] | None = None
        """Those of the server, as it has last named them; None before it was reached."""
        self.reset()
        _SESSIONS.add(self)

    def reset(self) -> None:
        """Begin anew, without a connection. What the server has named stays known."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connection: _Connection | None = None
        self._failures = 0
        self._again_at = 0.0
        self._why = ""
        self._tasks: set[asyncio.Task[None]] = set()

    # ── from any thread ──────────────────────────────────────────────────────────────────────────

    def connect(self) -> list[Tool]:
        """The tools of the server, which is asked only the first time.

        Raises:
            UnavailableError: when it cannot be reached.
        """
        if self.tools is None:
            try:
                self._wait(self._connected(), self.connect_s + _CLOSE_SECONDS)
            except TimeoutError:
                raise self.unavailable(f"no answer within {self.connect_s:g} s") from None
        return self.tools or []

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        """Call a tool and wait for its result, which may say that it has failed.

        Raises:
            OutOfTimeError: when it has taken longer than that.
            NotStartedError: when the server cannot be reached; nothing was done.
            ToolFailedError: when the call was refused, or the server ended under it.
        """
        try:
            return self._wait(self._call(name, arguments, seconds), seconds)
        except TimeoutError as error:
            raise OutOfTimeError from error
        except UnavailableError as error:
            raise NotStartedError(str(error)) from error

    def close(self) -> None:
        """End the session, and the server if it was started here."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._finish(), loop)
        thread.join(_CLOSE_SECONDS)
        self.reset()

    def _wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(seconds)
        finally:
            future.cancel()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name=f"agentq-mcp-{self.title}", daemon=True
                )
                self._thread.start()
            return self._loop

    def unavailable(self, why: str) -> UnavailableError:
        """The error for a server that cannot be reached."""
        return UnavailableError(
            f"the MCP server {self.title} cannot be reached: {why}",
            hint="check its command or URL, and that it starts by hand",
        )

    # ── on the loop ──────────────────────────────────────────────────────────────────────────────

    async def _call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT

        client, connection = await self._connected()
        try:
            return await client.call_tool(name, dict(arguments), read_timeout_seconds=seconds)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise TimeoutError from error
            if connection.over.is_set():
                raise ToolFailedError("no answer: its server has ended") from error
            if self.address.url and error.code != INVALID_PARAMS:
                connection.end()  # it may have forgotten the session
            raise ToolFailedError(f"an error of its server: {described(error)}") from error

    async def _connected(self) -> tuple[Client, _Connection]:
        """The connection, made when there is none. It is made to its end whoever stops waiting for it.

        Raises:
            UnavailableError: when it cannot be made, or could not a moment ago.
        """
        connection = self._connection
        if connection is None or connection.over.is_set():
            if connection is not None:
                self._lost(connection)
            if asyncio.get_running_loop().time() < self._again_at:
                raise self.unavailable(self._why)
            connection = self._connection = _Connection(self)
            self._tasks.add(connection.task)
            connection.task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(connection.ready), connection

    def _lost(self, connection: _Connection) -> None:
        """A server that fails again and again is tried less and less often."""
        self._connection = None
        error = connection.ready.exception()
        if error is None and connection.ended - connection.born > _STEADY_SECONDS:
            self._failures = 0
            return
        self._why = str(error).partition(": ")[2] if error else "it ends again and again"
        pause = _PAUSE_SECONDS * 2.0**self._failures if error or self._failures else 0.0
        self._failures = min(self._failures + 1, 10)
        self._again_at = connection.ended + min(pause, _LONGEST_PAUSE_SECONDS)
        log.warning("mcp_server_lost server=%s failures=%d why=%s", self.title, self._failures, self._why)

    def changed(self, connection: _Connection) -> None:
        """The server has other tools now. Asked in a task: this is called where its answers are read."""
        task = asyncio.create_task(self._refresh(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refresh(self, connection: _Connection) -> None:
        try:
            client = await connection.ready
            self.named(await asyncio.wait_for(connection.list(client), self.connect_s))
        except Exception as error:  # noqa: BLE001 - the tools stay as they were
            log.warning("mcp_tools_not_refreshed server=%s error=%s", self.title, described(error))

    def named(self, tools: list[Tool]) -> None:
        """Remember what the server has named. The same again changes nothing."""
        if self.tools != tools:
            self.tools = tools

    async def _finish(self) -> None:
        if self._connection is not None:
            self._connection.end()
        # Also one that has ended may still see to its server's end.
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CLOSE_SECONDS)
        asyncio.get_running_loop().stop()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _first_of(error: BaseException) -> BaseException:
    """What a group of errors began with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


_LEFT_BEHIND: list[asyncio.AbstractEventLoop] = []


def _forget() -> None:
    """In a fork: its thread is not there, and the connection is its parent's."""
    for session in list(_SESSIONS):
        if session._loop is not None:
            _LEFT_BEHIND.append(session._loop)  # closing it would close what is its parent's
        session.reset()


def close_all() -> None:
    """End the sessions of this process."""
    for session in list(_SESSIONS):
        session.close()


os.register_at_fork(after_in_child=_forget)
