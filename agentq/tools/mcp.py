"""`MCPServer`: the tools of a server that speaks the Model Context Protocol, for an agent."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentq.core.errors import UsageError
from agentq.tools.endings import ToolFailedError
from agentq.tools.gates import no_such_argument
from agentq.tools.mcpsession import Address, Session, close_all
from agentq.tools.spec import DEFAULT_RESULT_CHARS, DEFAULT_TIMEOUT_S, ToolSpec

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

log = logging.getLogger("agentq.mcp")

Patterns = Sequence[str]
"""Names of tools as the server has them, with `*` and `?` as in file names."""

CONNECT_SECONDS = 30.0
_NAME_CHARS = 64
_DESCRIPTION_CHARS = 4_000
_ERROR_CHARS = 1_000
_LEAST_SHOWN = 100
"""Problems that are looked at when arguments do not fit."""


class MCPServer:
    """The tools of one MCP server; put it into `tools=[…]` of an agent.

    Nothing is connected until the tools are needed, which is in a worker. Each process keeps one session.

    Args:
        name: put before the names of its tools, as `files` makes `files_read`; empty: they stay as they are.
        command: what starts a server that speaks over stdin and stdout.
        env: its environment, beside PATH, HOME and the like. It does not see that of the worker.
        cwd: its working directory.
        url: a server that speaks streamable HTTP, in place of a command.
        headers: sent to it with each request.
        allow: the tools that the agent gets; all by default.
        side_effect: tools that change something, whatever the server says.
        read_only: tools that change nothing. Every other one changes something unless the server says
            (`readOnlyHint`) that it does not.
        requires_approval: tools of which a person must approve each call; None: those that the server calls
            destructive (`destructiveHint`).
        idempotent: tools of which a repeated call does not act twice; None: those of which the server says so
            (`idempotentHint`).
        timeout_s: of each call, in seconds.
        max_result_chars: a longer result is cut, and says so.
        spill: a longer result is kept, and the agent may read it in parts.
        connect_s: how long the server may take to start and to name its tools, in seconds.

    Raises:
        UsageError: when the extra is not installed, or neither or both of `command` and `url` are given.
    """

    def __init__(
        self,
        name: str = "",
        *,
        command: Sequence[str | PathLike[str]] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        allow: Patterns = ("*",),
        side_effect: Patterns = (),
        read_only: Patterns = (),
        requires_approval: Patterns | None = None,
        idempotent: Patterns | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_result_chars: int = DEFAULT_RESULT_CHARS,
        spill: bool = False,
        connect_s: float = CONNECT_SECONDS,
    ) -> None:
        _check_installed()
        _check_address(name, command, url)
        if timeout_s <= 0 or connect_s <= 0 or max_result_chars < 1:
            raise UsageError("the limits of an MCP server must be more than 0")
        self.name = name
        self.allow = _patterns("allow", allow)
        self.side_effect = _patterns("side_effect", side_effect)
        self.read_only = _patterns("read_only", read_only)
        self.requires_approval = (
            None if requires_approval is None else _patterns("requires_approval", requires_approval)
        )
        self.idempotent = None if idempotent is None else _patterns("idempotent", idempotent)
        self.timeout_s = timeout_s
        self.max_result_chars = max_result_chars
        self.spill = spill
        where = Address(
            [fspath(word) for word in command],
            env=env,
            cwd=None if cwd is None else fspath(cwd),
            url=url,
            headers=headers,
        )
        # Without what a URL may have of a password or a key: it stands in logs.
        title = name or urlsplit(url).hostname or fspath(command[0])
        self._session = Session(title, where, connect_s=connect_s)
        self._guard = threading.Lock()
        self._made: tuple[list[Tool], tuple[ToolSpec, ...]] | None = None

    def __repr__(self) -> str:
        return f"MCPServer({self._session.title!r})"

    def specs(self) -> Sequence[ToolSpec]:
        """Its tools. The server is started, or called, the first time.

        Raises:
            UnavailableError: when it cannot be reached, and never was.
        """
        return self._specs_of(self._session.connect())

    def known(self) -> Sequence[ToolSpec] | None:
        """Its tools as far as this process has been told; None: it has not asked yet."""
        tools = self._session.tools
        return None if tools is None else self._specs_of(tools)

    def may_have(self, name: str) -> bool:
        """Whether a tool of this name could be one of its tools."""
        return name.startswith(f"{self.name}_") if self.name else True

    def close(self) -> None:
        """End the session, and the server if it was started here. It begins anew when it is needed again."""
        self._session.close()

    def _specs_of(self, tools: list[Tool]) -> tuple[ToolSpec, ...]:
        with self._guard:
            if self._made is None or self._made[0] is not tools:
                self._made = (tools, tuple(self._translated(tools)))
            return self._made[1]

    def _translated(self, tools: Sequence[Tool]) -> Iterator[ToolSpec]:
        taken: set[str] = set()
        for tool in sorted(tools, key=lambda tool: tool.name):
            if not _matches(tool.name, self.allow):
                continue
            spec = self._spec(tool, _valid_name(self.name, tool.name, taken))
            if spec is not None:
                taken.add(spec.name)
                yield spec

    def _spec(self, tool: Tool, name: str) -> ToolSpec | None:
        parameters = _parameters(tool.input_schema)
        check = _checker(parameters, tool.input_schema.get("$schema"))
        if check is None:
            log.warning(
                "mcp_tool_left_out server=%s tool=%s why=its schema is none", self._session.title, tool.name
            )
            return None
        hints = tool.annotations
        reads = hints is not None and hints.read_only_hint is True
        acts = _matches(tool.name, self.side_effect) or not (reads or _matches(tool.name, self.read_only))
        destroys = acts and hints is not None and hints.destructive_hint is True
        repeats = hints is not None and hints.idempotent_hint is True
        about = (tool.description or tool.title or f"The tool {tool.name} of {self._session.title}.").strip()
        return ToolSpec(
            name=name,
            description=about[:_DESCRIPTION_CHARS],
            parameters=parameters,
            fn=_Remote(self._session, tool.name, self.timeout_s),
            check=check,
            side_effect=acts,
            requires_approval=destroys
            if self.requires_approval is None
            else _matches(tool.name, self.requires_approval),
            idempotent=acts
            and (repeats if self.idempotent is None else _matches(tool.name, self.idempotent)),
            timeout_s=self.timeout_s,
            max_result_chars=self.max_result_chars,
            spill=self.spill,
        )


class _Remote:
    """A tool of a server, called as a function."""

    def __init__(self, session: Session, name: str, timeout_s: float) -> None:
        self._session = session
        self._name = name
        self._timeout_s = timeout_s

    def __call__(self, /, **arguments: Any) -> str:
        result = self._session.call(self._name, arguments, self._timeout_s)
        text = _text(result)
        if result.is_error:
            raise ToolFailedError(f"an error: {text[:_ERROR_CHARS]}")
        return text


def _check_installed() -> None:
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("jsonschema") is None:
        raise UsageError("tools of MCP servers need an extra", hint="pip install 'agentq[mcp]'")


def _check_address(name: str, command: Sequence[Any], url: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,32}", name):
        raise UsageError(
            f"{name!r} cannot be the name of an MCP server: use up to 32 letters, digits, '_' and '-'"
        )
    if isinstance(command, str):
        raise UsageError(f"the command of an MCP server is a list of words: {command.split()!r}")
    if bool(command) == bool(url):
        raise UsageError("an MCP server has either a command, as ['npx', '-y', 'some-server'], or a url")
    if url and not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no address of an MCP server: it begins with https:// or http://")


def _patterns(name: str, patterns: Patterns) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise UsageError(f"{name} of an MCP server is a list of patterns: [{patterns!r}]")
    return tuple(patterns)


def _matches(name: str, patterns: Patterns) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _valid_name(prefix: str, name: str, taken: set[str]) -> str:
    """A name that every provider takes; one that is too long, or taken, ends in its own hash."""
    full = f"{prefix}_{name}" if prefix else name
    valid = re.sub(r"[^A-Za-z0-9_-]", "_", full) or "_"
    if len(valid) <= _NAME_CHARS and valid not in taken:
        return valid
    digits = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{valid[: _NAME_CHARS - 9]}_{digits}"


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in schema.items() if key not in ("$schema", "$id", "title")}
    found.setdefault("type", "object")
    found.setdefault("properties", {})
    return found


def _checker(
    parameters: Mapping[str, Any], dialect: Any
) -> Callable[[Mapping[str, Any]], Sequence[str]] | None:
    """What says which arguments do not fit; None when this is no schema for an object."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    if parameters["type"] != "object" or not isinstance(parameters["properties"], Mapping):
        return None
    kind: Any = validator_for({"$schema": dialect}, default=Draft202012Validator)
    try:
        kind.check_schema(parameters)
    except SchemaError:
        return None
    # With a registry of its own, it fetches nothing that a server's schema refers to.
    validator = kind(parameters, registry=Registry())

    def check(arguments: Mapping[str, Any]) -> list[str]:
        problems: list[str] = []
        for error in validator.iter_errors(arguments):
            problems += _problems(error, parameters)
            if len(problems) >= _LEAST_SHOWN:
                break
        return problems

    return check


def _problems(error: Any, parameters: Mapping[str, Any]) -> list[str]:
    """What one error of the validator says, in the words of the gate."""
    path = [str(part) for part in error.absolute_path]
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = error.schema.get("properties", {})
        extra = [".".join([*path, name]) for name in error.instance if name not in known]
        if extra and not path:
            return [no_such_argument(name, parameters) for name in extra]
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        # The validator has one error for each of them.
        found = next((name for name in missing if repr(name) in error.message), missing[0])
        return [f"'{'.'.join([*path, found])}': Field required"]
    return [f"'{'.'.join(path)}': {error.message[:200]}" if path else error.message[:200]]


# ── results ──────────────────────────────────────────────────────────────────────────────────────────


def _text(result: CallToolResult) -> str:
    """The content as text; what is no text is named. Without any content, the structured one as JSON."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
    return "\n".join(_block(block) for block in result.content)


def _block(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_bytes(block.data)} bytes, not shown]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case "resource":
            kind = block.resource.mime_type or "binary"
            return f"[resource {block.resource.uri}: {kind}, {_bytes(block.resource.blob)} bytes, not shown]"
        case other:
            return f"[{other}: not shown]"


def _bytes(encoded: str) -> str:
    return f"{len(encoded.rstrip('=')) * 3 // 4:,}"


atexit.register(close_all)
