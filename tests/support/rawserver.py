"""A server that keeps to HTTP only as far as a test wants: each connection is played by a function."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_LINGER_NOT = struct.pack("ii", 1, 0)


class Line:
    """One connection, from the server's side."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self._sock = sock
        self.over = over
        """Set when the test is done: a player that waits does so for this."""

    def request(self) -> bytes:
        """The next whole request, head and body; empty when the client has gone."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._sock.recv(65_536)
            if not piece:
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < length:
            body += self._sock.recv(65_536)
        return head + b"\r\n\r\n" + body

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._sock.sendall(data)

    def answer(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        """A whole answer."""
        head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
        self.send("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Break the connection, so that the client is told."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._sock.close()

    def shrink(self) -> None:
        """Take in next to nothing of what is sent."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)


Player = Callable[[Line], None]


class RawServer:
    """A port of this machine; `connections` counts who came."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self._over = threading.Event()
        self._players: list[threading.Thread] = []
        self._door = threading.Thread(target=self._serve, name="raw server", daemon=True)
        self._door.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            player = threading.Thread(target=self._play, args=(sock,), daemon=True)
            self._players.append(player)
            player.start()

    def _play(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            self._player(Line(sock, self._over))

    def end(self) -> None:
        """Close everything; the clients have closed theirs before."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._door, *self._players):
            thread.join(10)


@contextmanager
def raw_server(player: Player) -> Iterator[RawServer]:
    """A server whose connections are each played by `player`, in a thread of its own."""
    server = RawServer(player)
    try:
        yield server
    finally:
        server.end()
