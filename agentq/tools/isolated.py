"""The process in which a tool with `isolation="process"` runs: it takes one call after the other.

Started as `python -c`, with nothing but a socket and a lifeline; what to import comes over the socket. A
message is its length in four bytes, and so many bytes: calls are pickled, answers are JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import runpy
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentq.core.errors import UsageError
from agentq.core.text import encodable
from agentq.tools.context import CallContext
from agentq.tools.guardian import guarded
from agentq.tools.result import described, text_of

MAX_MESSAGE_BYTES = 16_000_000
"""Of a call's arguments, and of what comes back."""


class MessageTooLongError(Exception):
    """Something is too large to be sent between the two processes."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the process finds a function's module: by its name, else in this file."""

    module: str
    file: str
    path: tuple[str, ...]
    """`sys.path` of the one who asks."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as it crosses. The pickled arguments are read when the module is there."""

    home: Home
    function: str
    arguments: bytes
    """Pickled: by name. What is a `CallContext` in them has crossed as `Context`."""
    most_chars: int
    """What is sent back of the result's text; the answer says how long it was."""


@dataclass(frozen=True, slots=True)
class Context:
    """A `CallContext` on its way: without the handles that stay with the worker."""

    user_id: str
    tenant_id: str
    approved_calls: frozenset[str]
    extra: Mapping[str, Any]
    run_id: str
    idempotency_key: str


class NoChildren:
    """In place of the handles of child runs, which stay with the worker."""

    suspended = False

    def of(self, call: str) -> NoChildren:  # noqa: ARG002 - as the protocol has it
        """The same for each call."""
        return self

    def spawn(self, *_: Any, **__: Any) -> Any:
        """Refuse.

        Raises:
            UsageError: always.
        """
        raise _no_children("spawn")

    def gather(self, *_: Any, **__: Any) -> Any:
        """Refuse.

        Raises:
            UsageError: always.
        """
        raise _no_children("gather")


def _no_children(verb: str) -> UsageError:
    return UsageError(
        f"ctx.{verb} is not there in a tool with isolation='process'",
        hint="start child runs from a tool without it",
    )


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────


def send(channel: socket.socket, message: bytes) -> None:
    """Send one message.

    Raises:
        MessageTooLongError: when it is longer than `MAX_MESSAGE_BYTES`; nothing was sent.
        OSError: when the other side is gone.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise MessageTooLongError(f"{len(message):,} bytes, and at most {MAX_MESSAGE_BYTES:,} can be sent")
    channel.sendall(struct.pack(">I", len(message)) + message)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """The next message.

    Args:
        channel: where from.
        deadline: by the monotonic clock, in seconds; None waits for ever.

    Raises:
        EOFError: when the other side is gone, or sends what is no message.
        TimeoutError: when the deadline has come.
    """
    length = struct.unpack(">I", _exactly(channel, 4, deadline))[0]
    if length > MAX_MESSAGE_BYTES:
        raise EOFError(f"a message of {length:,} bytes")
    return _exactly(channel, length, deadline)


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        if deadline is not None:
            channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            part = channel.recv(min(size, 1 << 20))
        except ConnectionError as error:
            raise EOFError("the other side is gone") from error
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ── the process ──────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Take calls until the socket is closed. Started by `agentq.tools.processes`, never by hand."""
    channel, lifeline = int(sys.argv[1]), int(sys.argv[2])
    guarded(lifeline, channel, lambda: _serve(channel))


def _serve(number: int) -> None:
    os.set_inheritable(number, False)
    with socket.socket(fileno=number) as channel:
        home = pickle.loads(receive(channel))  # noqa: S301 - from the process that started this one
        send(channel, json.dumps({"ready": _load(home)}).encode())
        while True:
            try:
                message = receive(channel)
            except EOFError:
                return
            send(channel, _answer(message))


def _load(home: Home) -> str:
    """Import the module; empty, or what is wrong with it."""
    sys.path[:] = home.path
    sys.argv[:] = [home.file]
    try:
        _imported(home)
    except BaseException as error:  # noqa: BLE001 - a user's module may raise anything
        return encodable(described(error))
    return ""


def _imported(home: Home) -> types.ModuleType:
    if home.module == "__main__":
        return _main_of(home.file)
    try:
        return importlib.import_module(home.module)
    except ModuleNotFoundError as error:
        if not home.file or not home.module.startswith(error.name or "?"):
            raise
    spec = importlib.util.spec_from_file_location(home.module, home.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{home.file} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[home.module] = module
    spec.loader.exec_module(module)
    return module


def _main_of(file: str) -> types.ModuleType:
    """The program of the one who asks, under another name, so that it does not start again."""
    present = sys.modules.get("__mp_main__")
    if present is None:
        present = types.ModuleType("__mp_main__")
        present.__dict__.update(runpy.run_path(file, run_name="__mp_main__"))
        # What is pickled there as of __main__ is found here.
        sys.modules["__main__"] = sys.modules["__mp_main__"] = present
    return present


def _answer(message: bytes) -> bytes:
    try:
        call: Call = pickle.loads(message)  # noqa: S301 - from the process that started this one
        text = text_of(_made(call))
        said: dict[str, Any] = {"text": encodable(text[: call.most_chars]), "chars": len(text)}
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything
        said = {"error": encodable(described(error))}
    return json.dumps(said, ensure_ascii=False).encode()


def _made(call: Call) -> Any:
    fn: Callable[..., Any] = _function(_imported(call.home), call.function)
    given: dict[str, Any] = pickle.loads(call.arguments)  # noqa: S301 - as above
    value = fn(**{name: _arrived(value) for name, value in given.items()})
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _arrived(value: Any) -> Any:
    return CallContext(**asdict(value), children=NoChildren()) if isinstance(value, Context) else value


def _function(module: types.ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    # Under further decorators, it is the function that was declared.
    spec = getattr(found, "tool_spec", None)
    return found if spec is None else getattr(spec.fn, "function", spec.fn)
