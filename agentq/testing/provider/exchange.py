"""From a request to its answer: checked, played, twisted by faults, and let in."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from agentq.core.errors import UsageError
from agentq.testing.provider import chat, messages, responses
from agentq.testing.provider.checks import missing, wrong_type
from agentq.testing.provider.fault import Fault, Faults
from agentq.testing.provider.limits import Gate, Limits
from agentq.testing.provider.overflow import overflow
from agentq.testing.provider.refusal import Refusal, invalid
from agentq.testing.provider.reply import Reply, Usage, reply_to
from agentq.testing.provider.request import Dialect, Request
from agentq.testing.provider.script import Player, Turn, behaved

MODULES: dict[Dialect, ModuleType] = {"chat": chat, "responses": responses, "messages": messages}
_SHOWN_KEY_CHARS = 4


@dataclass(slots=True)
class Answer:
    """What will be sent. `body` is the JSON or a text; with `events` a stream is sent in its place."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    events: Iterator[tuple[str, Any]] | None = None
    usage: Usage = field(default_factory=Usage)
    faults: tuple[Fault, ...] = ()

    def wire(self, name: str) -> Fault | None:
        """The fault that does this to the bytes, if one does."""
        return next((fault for fault in self.faults if fault.known.wire == name), None)


@dataclass(slots=True)
class Service:
    """What the server is, apart from its sockets. Every field may be changed while it runs."""

    player: Player
    faults: Faults
    limits: Limits | None = None
    models: Collection[str] | None = None
    keys: Collection[str] | None = None
    window: int | None = None
    extra_parameters: Collection[str] = ()
    gate: Gate = field(default_factory=Gate)

    def check_key(self, dialect: Dialect, headers: Mapping[str, str]) -> str:
        """The key of a request.

        Raises:
            Refusal: 401 when there is none, or it is not one of those that are taken.
        """
        key = headers.get("x-api-key", "") if dialect == "messages" else ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not key and scheme.lower() == "bearer":
            key = token.strip()
        key = key or headers.get("x-api-key", "")
        if key and (self.keys is None or key in self.keys):
            return key
        if dialect == "messages":
            raise Refusal(401, "invalid x-api-key" if key else "x-api-key header is required")
        if not key:
            raise Refusal(
                401,
                "You didn't provide an API key. You need to provide your API key in an Authorization "
                "header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
            )
        raise Refusal(401, f"Incorrect API key provided: {shown(key)}.", code="invalid_api_key")

    def check_model(self, dialect: Dialect, body: Mapping[str, Any]) -> None:
        """Refuse a model that there is not.

        Raises:
            Refusal: 400 without a name, 404 for one that is unknown.
        """
        model = body.get("model")
        if dialect == "messages" and not isinstance(model, str):
            raise invalid(
                "model: Field required" if model is None else "model: Input should be a valid string"
            )
        if model is None:
            raise missing("model")
        if not isinstance(model, str):
            raise wrong_type("model", "a string", model)
        if self.models is None or model in self.models:
            return
        if dialect == "messages":
            raise Refusal(404, f"model: {model}")
        raise Refusal(
            404,
            f"The model `{model}` does not exist or you do not have access to it.",
            code="model_not_found",
        )

    def read(self, request: Request) -> Request:
        """The request with all that its dialect reads from it.

        Raises:
            Refusal: when the service would refuse it.
        """
        self.check_model(request.dialect, request.body)
        if not isinstance(request.body.get("stream", False), bool | None):
            raise wrong_type("stream", "a boolean", request.body["stream"])
        known = {name: value for name, value in request.body.items() if name not in self.extra_parameters}
        found = MODULES[request.dialect].read(known)
        return replace(request, model=request.body["model"], stream=bool(request.body.get("stream")), **found)

    def answer(self, request: Request, key: str, hit: list[Fault]) -> Answer:
        """What this request gets.

        Raises:
            Refusal: when it is refused by a fault, the model's window or a limit.
        """
        for fault in hit:
            if fault.known.demands is not None:
                fault.known.demands(request, fault)
        for fault in hit:
            if fault.known.refuses is not None:
                raise fault.known.refuses(request, fault)
        if self.window is not None and request.input_tokens + (request.output_cap or 0) > self.window:
            raise overflow(request, self.window)
        reply = reply_to(request, self._turn(request, hit))
        for fault in hit:
            if fault.known.twists is not None:
                fault.known.twists(reply, request, fault)
        headers: dict[str, str] = {}
        if self.limits is not None:
            tokens = reply.usage.input + reply.usage.output
            headers = self.gate.admit(self.limits, request.dialect, key, request.model, tokens)
        return self._written(request, reply, headers, hit)

    def _turn(self, request: Request, hit: list[Fault]) -> Turn:
        turn = self.player.turn(request)
        if not any(fault.known.misbehaves for fault in hit):
            turn = behaved(turn, request)
        for fault in hit:
            if fault.known.turns is not None:
                turn = fault.known.turns(turn, request, fault)
        return turn

    def _written(self, request: Request, reply: Reply, headers: dict[str, str], hit: list[Fault]) -> Answer:
        module = MODULES[request.dialect]
        done = module.answer(request.body, reply)
        for fault in hit:
            if fault.known.rewrites is not None:
                done = fault.known.rewrites(done, request, fault)
        events = module.events(request.body, done) if request.stream and streams(done) else None
        return Answer(200, done, headers, events, reply.usage, tuple(hit))

    def refusal(self, refused: Refusal, dialect: Dialect, request_id: str, hit: list[Fault]) -> Answer:
        """The answer that refuses."""
        body = refused.body
        if body is None:
            body = MODULES[dialect].refusal(refused, request_id)
        return Answer(refused.status, body, dict(refused.headers), faults=tuple(hit))


def streams(done: Any) -> bool:
    """Whether a body is an answer that can be streamed: a fault may have left none of it."""
    if not isinstance(done, dict) or done.get("error"):
        return isinstance(done, dict) and done.get("object") == "response"
    return bool(done.get("choices")) or "output" in done or "content" in done


def shown(key: str) -> str:
    """A key as it may be shown: its last characters, of a long one."""
    return f"…{key[-_SHOWN_KEY_CHARS:]}" if len(key) >= 3 * _SHOWN_KEY_CHARS else "…"


def new_request_id() -> str:
    """An id of a request, as both services write it."""
    return f"req_{secrets.token_hex(12)}"


def failed(error: Exception) -> Refusal:
    """What a script or predicate of the user's raised, as an answer that says so."""
    name = "this is no turn" if isinstance(error, UsageError) else type(error).__name__
    return Refusal(400, f"the fake provider's script failed: {name}: {error}")
