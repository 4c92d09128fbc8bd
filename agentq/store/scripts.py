"""The scripts: each `lua/*.lua` file with the prelude in front, called by its hash.

Loading by hash means that a worker brings its own scripts, so old and new workers run side by side.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import redis

from agentq.core.errors import StoreError

_FLAGS = re.compile(r"^-- FLAGS (.+)$", re.MULTILINE)
Arg = str | int


@cache
def source(name: str) -> str:
    """The text that is sent to the server for `lua/<name>.lua`."""
    folder = files("agentq.store") / "lua"
    body = (folder / f"{name}.lua").read_text(encoding="utf-8")
    prelude = (folder / "_prelude.lua").read_text(encoding="utf-8")
    found = _FLAGS.search(body)
    shebang = f"#!lua flags={found.group(1).replace(' ', ',')}" if found else "#!lua"
    return f"{shebang}\n{prelude}\n{body}"


@cache
def digest(name: str) -> str:
    """The hash by which the server knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Calls scripts on one server, with the routing key as their only declared key."""

    def __init__(self, client: redis.Redis, routing_key: str) -> None:
        self._client = client
        self._key = routing_key

    def call(self, name: str, *args: Arg) -> list[Any]:
        """The reply of one script; it is loaded first when the server does not know it."""
        try:
            return self._client.evalsha(digest(name), 1, self._key, *args)  # type: ignore[no-any-return]
        except redis.exceptions.NoScriptError:
            return self._client.eval(source(name), 1, self._key, *args)  # type: ignore[no-any-return]

    def call_many(self, name: str, calls: Sequence[Sequence[Arg]]) -> list[list[Any]]:
        """The replies of one script called many times, in one round trip. Safe to repeat, as scripts are."""
        if not calls:
            return []
        for _ in range(2):
            pipeline = self._client.pipeline(transaction=False)
            for args in calls:
                pipeline.evalsha(digest(name), 1, self._key, *args)
            try:
                return pipeline.execute()
            except redis.exceptions.NoScriptError:
                self._client.script_load(source(name))
        raise StoreError(f"{name}: the server forgets its scripts as soon as they are loaded")


def unexpected(name: str, reply: object) -> StoreError:
    """The error for an answer that the script's contract does not have."""
    return StoreError(f"{name}.lua answered {reply!r}, which its contract does not have")
