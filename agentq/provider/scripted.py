"""A model that plays a script: deterministic, free, and the same from any worker.

The turn is chosen by the thread (how many assistant messages the request has, or a summary in it stands for),
never by a counter, so a step that is made again in another process gets the same reply.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentq.provider.errors import InvalidRequest
from agentq.provider.types import ChatRequest, ChatResult, Role, ToolCall, Usage

Turn = str | Sequence[tuple[str, str]]
"""What the model does at its turn: says a text, or asks for calls given as (tool, arguments as JSON)."""

SUMMARY_OPERATION = "agent_summary"
"""The operation of a request for a summary: its answer is in no script."""
SUMMARY = "Everything so far went as planned."
_PAIR = 2


@dataclass
class ScriptedClient:
    """Plays `script` word for word, also where the request forbids tools; the last turn repeats.

    Without a script of its own it plays the one under `script` in the request's metadata. Every call uses
    exactly `usage`. `requests` is what this object was sent, for tests.
    """

    script: Sequence[Turn] | None = None
    provider: str = "scripted"
    model: str = "scripted-v1"
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=500, output_tokens=100))
    requests: list[ChatRequest] = field(default_factory=list, repr=False)

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedClient:
        """A client whose script is the JSON list in a file.

        Raises:
            InvalidRequest: when the file cannot be read or holds no list.
        """
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"cannot read the script {path}: {error}", provider="scripted") from error
        if not isinstance(script, list):
            raise InvalidRequest(f"the script {path} must be a JSON list of turns", provider="scripted")
        return cls(script)

    @property
    def call_count(self) -> int:
        """How many calls this object has answered."""
        return len(self.requests)

    def bound(self, req: ChatRequest) -> Usage:  # noqa: ARG002 - the same for each call
        """Exactly what the call will use."""
        return self.usage

    def complete(self, req: ChatRequest) -> ChatResult:
        """The turn that this request is at.

        Raises:
            InvalidRequest: when there is no script, or the turn is none.
        """
        self.requests.append(req)
        return self._play(req)

    def _play(self, req: ChatRequest) -> ChatResult:
        if req.operation == SUMMARY_OPERATION:
            return self._result(SUMMARY)
        index, turn = self._turn(req)
        if isinstance(turn, str):
            return self._result(turn)
        calls = [ToolCall(f"call_{index}_{i}", *self._pair(index, pair)) for i, pair in enumerate(turn)]
        return self._result("", calls)

    def _turn(self, req: ChatRequest) -> tuple[int, Turn]:
        script: Any = self.script if self.script is not None else req.metadata.get("script")
        if script is None:
            raise self._refuse(
                "there is no script: give one to the client, or as `script` in the row's metadata"
            )
        if isinstance(script, str) or not isinstance(script, Sequence) or not script:
            raise self._refuse("the script must be a list of at least one turn")
        index = req.summarised + sum(message.role is Role.ASSISTANT for message in req.messages)
        turn = script[min(index, len(script) - 1)]
        if not isinstance(turn, str) and (not isinstance(turn, Sequence) or not turn):
            raise self._refuse(f"turn {index} must be a text or a list of [tool, arguments as JSON text]")
        return index, turn

    def _pair(self, index: int, pair: Any) -> tuple[str, str]:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != _PAIR:
            raise self._refuse(f"turn {index} has a call that is not [tool, arguments as JSON text]")
        name, arguments = pair
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise self._refuse(f"turn {index}: a call's tool and arguments must both be text")
        return name, arguments

    def _result(self, text: str, calls: Sequence[ToolCall] = ()) -> ChatResult:
        reason = "tool_calls" if calls else "stop"
        return ChatResult(
            text, self.usage, self.provider, self.model, finish_reason=reason, tool_calls=tuple(calls)
        )

    def _refuse(self, message: str) -> InvalidRequest:
        return InvalidRequest(message, provider=self.provider, model=self.model)


@dataclass
class ScriptedModel(ScriptedClient):
    """A script behind a model that behaves: forbidden to call tools it says which calls it still wanted.

    This is `model="scripted"`. It keeps no requests: it may answer millions.
    """

    calls: int = 0

    @property
    def call_count(self) -> int:
        """How many calls this object has answered."""
        return self.calls

    def complete(self, req: ChatRequest) -> ChatResult:
        """The turn that this request is at, as text when tools are forbidden.

        Raises:
            InvalidRequest: when there is no script, or the turn is none.
        """
        self.calls += 1
        result = self._play(req)
        if not result.wants_tools or req.tool_choice != "none":
            return result
        wanted = ", ".join(f"{call.name}({call.arguments})" for call in result.tool_calls)
        return self._result(f"Stopped before the end. Still missing: {wanted}")
