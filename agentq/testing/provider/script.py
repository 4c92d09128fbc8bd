"""Who answers: a script, a function, or the default, which calls the first tool and then says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentq.core.errors import UsageError
from agentq.testing.arguments import NoArgumentsError, example_of
from agentq.testing.provider.refusal import Refusal
from agentq.testing.provider.request import Request

_HINT = 'a turn is a text, a list like [["get_order", {"order_id": 1}]], or an object with "text" and "calls"'
_FIELDS = frozenset(
    {
        "text", "calls", "thinking", "stop", "input_tokens", "output_tokens", "reasoning_tokens",
        "cached_tokens", "cache_write_tokens",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. A text is sent as it is, whatever it holds; anything else as JSON."""

    name: str
    arguments: Any = field(default_factory=dict)

    def text(self) -> str:
        """The arguments as the model writes them."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the model does at its turn. Tokens that are not given are counted from the texts.

    `stop` is why it stopped, where that is not what follows from the turn: `length`, `filter`, `refusal`,
    `pause` or `window`. `reasoning_tokens` are a part of the output, `cached_tokens` and `cache_write_tokens`
    parts of the input.
    """

    text: str = ""
    calls: Sequence[Call | Sequence[Any]] = ()
    thinking: str = ""
    stop: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", tuple(_call(call) for call in self.calls))

    @property
    def called(self) -> tuple[Call, ...]:
        """The calls, each a `Call`."""
        return tuple(_call(call) for call in self.calls)


AnyTurn = Turn | str | Sequence[Any] | Mapping[str, Any]
Script = Sequence[AnyTurn] | Mapping[str, Sequence[AnyTurn]] | Callable[[Request], AnyTurn]
"""Turns in order; or by model, `*` for the others; or a function from a request to its turn."""


def turn_of(value: AnyTurn) -> Turn:
    """A turn in any of its forms.

    Raises:
        UsageError: when it is none.
    """
    match value:
        case Turn():
            return value
        case str():
            return Turn(text=value)
        case Mapping():
            unknown = set(value) - _FIELDS
            if unknown:
                raise UsageError(f"a turn has no field {sorted(unknown)[0]!r}", hint=_HINT)
            return Turn(**value)
        case Sequence() if value:
            return Turn(calls=list(value))
    raise UsageError(f"{value!r} is no turn", hint=_HINT)


def _call(value: Any) -> Call:
    if isinstance(value, Call):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (1, 2):
        name, *rest = value
        if isinstance(name, str):
            return Call(name, *rest)
    raise UsageError(f"{value!r} is no call: it is [tool, arguments]", hint=_HINT)


class Player:
    """Plays a script. It keeps nothing: the turn is chosen by how many the assistant has had."""

    def __init__(self, script: Script | None = None) -> None:
        """Check the whole script.

        Raises:
            UsageError: when a turn in it is none.
        """
        self._function: Callable[[Request], AnyTurn] | None = None
        self._turns: dict[str, list[Turn]] = {}
        if callable(script):
            self._function = script
        elif isinstance(script, Mapping):
            self._turns = {model: _list(turns) for model, turns in script.items()}
        elif script is not None:
            self._turns = {"*": _list(script)}

    def turn(self, request: Request) -> Turn:
        """What the model does now; it calls no tool that the request forbids.

        Raises:
            Refusal: when no arguments can be made up for a tool; a script of one's own helps.
        """
        if self._function is not None:
            turn = turn_of(self._function(request))
        else:
            turns = self._turns.get(request.model) or self._turns.get("*")
            turn = turns[min(request.turn, len(turns) - 1)] if turns else default_turn(request)
        return turn

    @classmethod
    def from_file(cls, path: str | Path) -> Player:
        """Play the JSON in a file: a list of turns, or an object of such lists by model.

        Raises:
            UsageError: when the file cannot be read, or holds no script.
        """
        return cls(load_script(path))


def load_script(path: str | Path) -> Script:
    """The script in a JSON file, checked.

    Raises:
        UsageError: when the file cannot be read, or holds no script.
    """
    try:
        script = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the script {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the script {path} is not JSON: {error}", hint=_HINT) from None
    if not isinstance(script, list | dict) or not script:
        raise UsageError(f"the script {path} must be a list of turns, or an object of such lists by model")
    try:
        Player(script)
    except UsageError as error:
        raise UsageError(f"the script {path}: {error}", hint=_HINT) from None
    return script


def _list(turns: Any) -> list[Turn]:
    if isinstance(turns, str) or not isinstance(turns, Sequence) or not turns:
        raise UsageError("a script is a list of at least one turn", hint=_HINT)
    return [turn_of(turn) for turn in turns]


def default_turn(request: Request) -> Turn:
    """Call the first tool, or the one that must be called; with a result, or without tools, answer.

    Raises:
        Refusal: when no arguments can be made up for the tool.
    """
    if request.tools and request.choice not in ("none", "auto"):
        return _call_of(request, request.choice)
    if not request.forbids_tools and not request.results:
        return _call_of(request, "")
    if request.schema is not None:
        made = _made(request.schema, "the answer")
        return Turn(text=json.dumps(made, ensure_ascii=False, default=str))
    said = request.text if len(request.text) <= 200 else request.text[:199] + "…"
    return Turn(text=f'You said: "{said}".')


def behaved(turn: Turn, request: Request) -> Turn:
    """The turn of a model that keeps to `tool_choice`: forbidden to call, it says what it wanted."""
    if not turn.calls or not request.forbids_tools:
        return turn
    wanted = ", ".join(f"{call.name}({call.text()})" for call in turn.called)
    return Turn(text=turn.text or f"Stopped before the end. Still missing: {wanted}", thinking=turn.thinking)


def _call_of(request: Request, name: str) -> Turn:
    tool = next((tool for tool in request.tools if tool.name == name), request.tools[0])
    return Turn(calls=[Call(tool.name, _made(tool.schema, f"the tool {tool.name}"))])


def _made(schema: Mapping[str, Any], what: str) -> Any:
    try:
        return example_of(schema)
    except NoArgumentsError as error:
        message = f"the fake provider can make up nothing for {what}: {error}; give it a script"
        raise Refusal(400, message) from error
