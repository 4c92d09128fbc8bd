"""A network between a worker and its server, which a test breaks: a TCP port before the server's socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from agentq.core.urls import broker_url_for


class Proxy:
    """One line to one server. Every method returns when the line is as it says."""

    def __init__(self, server_url: str) -> None:
        self._socket = urlsplit(server_url).path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._lines: set[asyncio.StreamWriter] = set()
        self._ends: list[asyncio.StreamWriter] = []
        """Of all lines that ever were."""
        self._refusing = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server = self._do(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to come this way."""
        return {"AGENTQ_REDIS_URL": self.url, "AGENTQ_BROKER_URL": broker_url_for(self.url)}

    def cut(self) -> None:
        """All connections break, and new ones do as soon as they are made."""
        self._do(self._cut())

    def swallow(self) -> None:
        """Nothing passes and nothing breaks: what is sent arrives when the line is whole again, if ever."""
        self._do(self._swallow())

    def mend(self) -> None:
        """The line is whole again."""
        self._do(self._mend())

    def end(self) -> None:
        """Close everything."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _cut(self) -> None:
        self._refusing = True
        self._passing.set()
        while self._lines:
            self._lines.pop().transport.abort()

    async def _swallow(self) -> None:
        self._passing.clear()

    async def _mend(self) -> None:
        self._refusing = False
        self._passing.set()

    async def _end(self) -> None:
        # Not closed yet: who was accepted a moment ago needs the server to be turned away by its task.
        for listener in self._server.sockets:
            self._loop.remove_reader(listener)
        await self._cut()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        if self._refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_unix_connection(self._socket)
        except OSError:  # the server is not there, or takes nobody
            writer.transport.abort()
            return
        self._ends.append(to_server)
        if self._refusing:  # by now
            writer.transport.abort()
            to_server.transport.abort()
            return
        self._lines |= {writer, to_server}
        try:
            await asyncio.gather(self._pass(reader, to_server), self._pass(from_server, writer))
        finally:
            for end in (writer, to_server):
                self._lines.discard(end)
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        # Whatever one end has closed is closed at the other, once what it had sent has arrived.
        with suppress(OSError, RuntimeError):
            writer.write_eof()


@contextmanager
def proxied(server_url: str) -> Iterator[Proxy]:
    """A line to this server, as long as the block lasts."""
    proxy = Proxy(server_url)
    try:
        yield proxy
    finally:
        proxy.end()
