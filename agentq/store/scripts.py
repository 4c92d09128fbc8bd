"""The scripts: each `lua/*.lua` file with the parts that it uses in front, called by its hash.

Loading by hash means that a worker brings its own scripts, so old and new workers run side by side.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentq.core.errors import SchemaError, StoreError

_FLAGS = re.compile(r"^-- FLAGS (.+)$", re.MULTILINE)
_USES = re.compile(r"^-- USES  (.+)$", re.MULTILINE)
_PART = re.compile(r"^ +-- PART (\w+)$", re.MULTILINE)
Arg = str | int


@cache
def source(name: str) -> str:
    """The text that is sent to the server for `lua/<name>.lua`."""
    body = _text(name)
    uses = _USES.search(body)
    # Each part costs its script some time: only what is used is put in front.
    parts = [_text(f"_{part}") for part in ["base", *(uses.group(1).split() if uses else [])]]
    found = _FLAGS.search(body)
    shebang = f"#!lua flags={found.group(1).replace(' ', ',')}" if found else "#!lua"
    return "\n".join([shebang, *parts, body])


def _text(name: str) -> str:
    """A file, with the parts that it hardly ever needs inside the functions that do."""
    text = (files("agentq.store") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return _PART.sub(lambda part: _text(f"_{part.group(1)}"), text)


@cache
def digest(name: str) -> str:
    """The hash by which the server knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Calls scripts on one server, with the routing key as their only declared key."""

    def __init__(self, client: redis.Redis, routing_key: str) -> None:
        self._client = client
        self._key = routing_key
        self._connections = _Connections(client)

    def call(self, name: str, *args: Arg) -> list[Any]:
        """The reply of one script; it is loaded first when the server does not know it.

        Raises:
            SchemaError: when the state is newer than this release understands; nothing was changed.
        """
        try:
            reply = self._connections.execute("EVALSHA", digest(name), 1, self._key, *args)
        except redis.exceptions.NoScriptError:
            reply = self._connections.execute("EVAL", source(name), 1, self._key, *args)
        return _understood(reply)

    def call_many(self, name: str, calls: Sequence[Sequence[Arg]]) -> list[list[Any]]:
        """The replies of one script called many times, in one round trip. Safe to repeat, as scripts are.

        Raises:
            SchemaError: as `call`. Calls before the one that says so may have been carried out.
        """
        if not calls:
            return []
        for _ in range(2):
            pipeline = self._client.pipeline(transaction=False)
            for args in calls:
                pipeline.evalsha(digest(name), 1, self._key, *args)
            try:
                return [_understood(reply) for reply in pipeline.execute()]
            except redis.exceptions.NoScriptError:
                self._client.script_load(source(name))
        raise StoreError(f"{name}: the server forgets its scripts as soon as they are loaded")


class _Connections:
    """The connections that scripts go over, out of the client's pool.

    redis-py's `evalsha` spends more than half of its time around the command: taking a connection out of the
    pool and testing it, recording metrics. Scripts are nearly all that a worker sends, so they keep their
    connections and leave that out; what is lost is noticed at the next use, and the command is repeated.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._retry = client.get_retry() or Retry(NoBackoff(), 0)
        self._pid = os.getpid()
        self._idle: list[Any] = []

    def execute(self, *command: Arg) -> list[Any]:
        """The reply to one command, repeated after a lost connection as often as the client would."""
        if self._pid != os.getpid():  # a forked child must not share its parent's sockets
            self._pid, self._idle = os.getpid(), []
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.get_connection()

        def once() -> list[Any]:
            connection.send_command(*command, check_health=False)
            return connection.read_response()  # type: ignore[no-any-return]

        try:
            return self._retry.call_with_retry(once, lambda _: connection.disconnect())
        except redis.exceptions.ResponseError:
            raise
        except BaseException:
            connection.disconnect()  # its reply may still be on the way, for a command that nobody awaits
            raise
        finally:
            self._idle.append(connection)


def _understood(reply: list[Any]) -> list[Any]:
    match reply:
        case ["SCHEMA", version]:
            raise SchemaError(int(version))
        case _:
            return reply


def unexpected(name: str, reply: object) -> StoreError:
    """The error for an answer that the script's contract does not have."""
    return StoreError(f"{name}.lua answered {reply!r}, which its contract does not have")
