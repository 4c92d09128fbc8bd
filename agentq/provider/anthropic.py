"""Anthropic Messages: the dialect of Claude, and of servers that take its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentq.provider.blocks import calls_in, can_stand, kept, opens_with_thought, text_of, tool_calls
from agentq.provider.errors import ContextOverflow, InvalidRequest, LLMError, TransientError
from agentq.provider.history import Entry, history, mapping, whole
from agentq.provider.httpmodel import HttpModel
from agentq.provider.schemas import narrow, plain
from agentq.provider.types import ChatRequest, ChatResult, Usage

_VERSION = "2023-06-01"
"""The one that other servers know; the next one refuses a temperature, also where the model takes it."""
_ENDED = frozenset({"", "end_turn", "tool_use", "stop_sequence"})
_WINDOW = "model_context_window_exceeded"
_FILLED = "window_filled: the reply ends where the model's window does"
_MARK = {"type": "ephemeral"}
"""What a cache of five minutes is asked for with; a write costs a quarter more, a read a tenth."""
_MARKED_TURNS = 2
"""The last turn, to be read by the next call, and the one before, which this call reads."""
_GO_ON = "Go on."
"""What the user says where the dialect demands that somebody does."""
_EMPTY_RESULT = "(empty)"
_THOUGHT_MIN = 1_024
"""The least that thinking may be allowed."""
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_REASON_CHARS = 300


class Anthropic(HttpModel):
    """One model behind `POST {base_url}/v1/messages`.

    Two options are no part of a request: `disable_parallel_tool_use`, for one call at a time, and `betas`,
    the names of features that are asked for in a header.
    """

    dialect = "anthropic"
    path = "/v1/messages"
    vendor = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    public_url = "https://api.anthropic.com"
    own_keys = frozenset({"model", "messages", "system", "max_tokens", "tools", "tool_choice", "stream"})

    def headers(self, key: str | None) -> dict[str, str]:
        """The version of the dialect, the key where there is one, and the betas that the options name."""
        headers = {"anthropic-version": _VERSION}
        if key:
            headers["x-api-key"] = key
        betas = self.options.get("betas")
        if betas:
            headers["anthropic-beta"] = betas if isinstance(betas, str) else ",".join(map(str, betas))
        return headers

    def body(self, req: ChatRequest) -> dict[str, Any]:
        """The request. Tools that may not be called stay declared: the dialect wants those of the history."""
        entries = history(req.messages, by=self.by, calls_in=calls_in, ids=self.quirks.call_ids)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": req.max_output_tokens,
            "messages": self._messages(entries),
        }
        system = self._system(req, entries)
        if system:
            body["system"] = [{"type": "text", "text": system}]
        body |= self._tools(req, entries)
        held = self._held(req)
        if held is not None:
            body["output_format"] = {"type": "json_schema", "schema": held}
        if req.temperature is not None and self.quirks.temperature:
            body["temperature"] = req.temperature
        if req.stop:
            body["stop_sequences"] = list(req.stop)
        if self.quirks.prompt_cache:
            self._mark(body)
        return body

    def fitting(self, body: dict[str, Any]) -> dict[str, Any]:
        """With the format in the place where the user's effort may be, and thinking only where it can be."""
        body = {key: value for key, value in body.items() if key != "betas"}
        held = body.pop("output_format", None)
        if held is not None:
            body["output_config"] = {**mapping(body.get("output_config")), "format": held}
        alone = body.pop("disable_parallel_tool_use", False)
        choice = {"type": "auto", **mapping(body.get("tool_choice"))}
        if alone and "tools" in body and choice["type"] != "none" and self.quirks.parallel_tool_calls:
            body["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
        return _thoughtful(body)

    def result(self, data: Mapping[str, Any], req: ChatRequest) -> ChatResult:
        """The message. Whether it has calls is decided by looking, never by its stop reason."""
        blocks = data["content"]
        if not isinstance(blocks, list):
            raise ValueError("its content is no list of blocks")
        calls, text = tool_calls(blocks), text_of(blocks)
        usage = _usage(data.get("usage"))
        stop = str(data.get("stop_reason") or "")
        self._refuse_failed(data, stop, empty=not calls and not text.strip())
        if stop in {"max_tokens", _WINDOW} or usage.output_tokens >= max(req.max_output_tokens, 1):
            finish = "max_tokens"
        elif calls:
            finish = "tool_calls"
        else:
            finish = "pause_turn" if stop == "pause_turn" else "stop"
        model = data.get("model")
        return ChatResult(
            text,
            usage,
            self.provider,
            model if isinstance(model, str) and model else self.model,
            finish_reason=finish,
            prompt_ref=req.prompt_ref,
            tool_calls=calls,
            raw=data,
            turn=kept(self.by, blocks, paused=finish == "pause_turn") if self.quirks.keeps_turns else None,
            notes=(*self.once(self._reductions(req)), *([_FILLED] if stop == _WINDOW else [])),
        )

    def _path(self) -> str:
        return "/messages" if self.base_url.endswith("/v1") else self.path

    # ── the request ──────────────────────────────────────────────────────────────────────────────

    def _system(self, req: ChatRequest, entries: Sequence[Entry]) -> str:
        told = [req.system or "", *(entry.text for entry in entries if entry.role == "system")]
        if req.json_schema is not None and self._is_only_told(req):
            told.append(_told(req.json_schema))
        return "\n\n".join(text for text in told if text.strip())

    def _messages(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Messages of user and assistant in turn: the first is a user's, and the last, but after a pause."""
        said = [entry for entry in entries if entry.role != "system"]
        messages: list[dict[str, Any]] = []
        resumed = False
        for entry, following in zip(said, [*said[1:], None], strict=True):
            if entry.role == "user":
                _add(messages, "user", [_text(entry.text)] if entry.text.strip() else [])
                continue
            own = self._own(entry, following)
            resumed = own is not None and following is None
            _add(messages, "assistant", _normal(entry) if own is None else own)
            _add(messages, "user", [_result(outcome) for outcome in entry.outcomes])
        if not messages:
            raise InvalidRequest("there is nothing to send", provider=self.provider, model=self.model)
        if messages[0]["role"] == "assistant":
            messages.insert(0, {"role": "user", "content": [_text(_GO_ON)]})
        if messages[-1]["role"] == "assistant":
            _end(messages, resumed=resumed)
        return messages

    def _own(self, entry: Entry, following: Entry | None) -> list[dict[str, Any]] | None:
        """The turn as this model wrote it. One that was paused can only be gone on with."""
        if entry.turn is None or not isinstance(entry.turn.body, list) or not self.quirks.keeps_turns:
            return None
        goes_on = following is None or following.turn is not None
        return entry.turn.body if goes_on or can_stand(entry.turn.body) else None

    def _tools(self, req: ChatRequest, entries: Sequence[Entry]) -> dict[str, Any]:
        called = dict.fromkeys(call.name for entry in entries for call in entry.calls)
        tools = list(req.tools) or [{"name": name} for name in called]
        if not tools:
            return {}
        declared: dict[str, Any] = {"tools": [self._tool(tool) for tool in tools]}
        choice = req.tool_choice or "auto"
        if choice == "none" or not req.tools:
            declared["tool_choice"] = {"type": "none"}
        elif choice != "auto":
            kind = {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}
            declared["tool_choice"] = kind
        return declared

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        schema, _ = self._input_schema(tool)
        described = {"description": tool["description"]} if tool.get("description") else {}
        return {"name": tool["name"], **described, "input_schema": schema}

    def _input_schema(self, tool: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The schema of a tool's arguments, and what of it is lost: a choice at its top is refused."""
        schema = dict(tool.get("parameters") or {})
        lost: tuple[str, ...] = ()
        if self.quirks.schema_keys == "plain":
            schema, lost = plain(schema)
        lost += tuple(key for key in _COMBINATORS if key in schema)
        held = {key: value for key, value in schema.items() if key not in _COMBINATORS}
        return {**held, "type": "object"}, lost

    def _held(self, req: ChatRequest) -> dict[str, Any] | None:
        """The schema that the provider holds the answer to, in its own form."""
        return narrow(req.json_schema) if req.json_schema is not None and self.native_schema else None

    def _is_only_told(self, req: ChatRequest) -> bool:
        """Whether the answer has a schema that the provider's own form cannot express."""
        return req.json_schema is not None and self.native_schema and self._held(req) is None

    def _mark(self, body: dict[str, Any]) -> None:
        """Have the prompt cached up to where it will be the same: in the next run, and in the next step."""
        if mapping(body.get("tool_choice")).get("type") == "none":
            return  # nothing follows, and what went before had other tools
        fixed = body.get("system") or body.get("tools")
        if fixed:
            fixed[-1] = {**fixed[-1], "cache_control": _MARK}
        if "tools" in body:
            users = [message for message in body["messages"] if message["role"] == "user"]
            for message in users[-_MARKED_TURNS:]:
                message["content"][-1] = {**message["content"][-1], "cache_control": _MARK}

    # ── the reply ────────────────────────────────────────────────────────────────────────────────

    def _refuse_failed(self, data: Mapping[str, Any], stop: str, *, empty: bool) -> None:
        if stop == "refusal":
            details = mapping(data.get("stop_details"))
            why = [str(details[name]) for name in ("category", "explanation") if details.get(name)]
            said = f": {': '.join(why)}"[:_REASON_CHARS] if why else ""
            raise self._failed(InvalidRequest, f"the model refused to answer{said}")
        if stop == _WINDOW and empty:
            raise self._failed(ContextOverflow, "the prompt left no room for an answer in the model's window")
        if stop not in _ENDED | {"max_tokens", "pause_turn", _WINDOW}:
            raise self._failed(TransientError, f"the answer is not whole: it stopped with {stop[:64]!r}")

    def _failed(self, kind: type[LLMError], why: str) -> LLMError:
        return kind(why, provider=self.provider, model=self.model, status_code=200, billed=None)

    def _reductions(self, req: ChatRequest) -> Iterator[str]:
        """What of the schemas does not reach the model."""
        for tool in req.tools:
            _, lost = self._input_schema(tool)
            if lost:
                yield f"schema_reduced: tool {tool['name']}: dropped {', '.join(lost)}"
        if self._is_only_told(req):
            yield "schema_reduced: the answer: the model is told of its schema, not held to it"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _normal(entry: Entry) -> list[dict[str, Any]]:
    """A turn out of its text and calls."""
    blocks = [_text(entry.text)] if entry.text.strip() else []
    for call in entry.calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        )
    return blocks


def _result(outcome: Any) -> dict[str, Any]:
    block = {
        "type": "tool_result",
        "tool_use_id": outcome.call_id,
        "content": outcome.content if outcome.content.strip() else _EMPTY_RESULT,
    }
    return block if outcome.ok else {**block, "is_error": True}


def _add(messages: list[dict[str, Any]], role: str, blocks: Sequence[dict[str, Any]]) -> None:
    """Say more: what the user says in a row is one message, and none says nothing.

    Parts of a paused turn stay apart, as they came.
    """
    if not blocks:
        return
    if role == "user" and messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": list(blocks)})


def _end(messages: list[dict[str, Any]], *, resumed: bool) -> None:
    """Go on with a turn that was paused. Any other at the end would be words put into the model's mouth."""
    if not resumed:
        messages.append({"role": "user", "content": [_text(_GO_ON)]})
        return
    last = messages[-1]["content"][-1]
    if last.get("type") == "text":
        messages[-1]["content"][-1] = {**last, "text": str(last["text"]).rstrip()}


def _told(schema: Mapping[str, Any]) -> str:
    return (
        "Give your final answer as one JSON object and nothing else, no code fence. It must conform to this "
        f"JSON schema:\n{json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"
    )


def _thoughtful(body: dict[str, Any]) -> dict[str, Any]:
    """Thinking within the cap on output, and without what cannot be beside it."""
    thinking = mapping(body.get("thinking"))
    if thinking.get("type") == "enabled":
        budget, cap = thinking.get("budget_tokens"), body["max_tokens"]
        over = isinstance(budget, int) and budget >= cap
        # A turn with calls that began without a thought (another model's) cannot be gone on with one.
        if (over and cap // 2 < _THOUGHT_MIN) or not opens_with_thought(body["messages"]):
            del body["thinking"]
            return body
        if over:
            body["thinking"] = {**thinking, "budget_tokens": cap // 2}
    if thinking.get("type", "disabled") != "disabled":
        body.pop("temperature", None)
        if mapping(body.get("tool_choice")).get("type") in {"any", "tool"}:
            body["tool_choice"] = {**body["tool_choice"], "type": "auto"}
            body["tool_choice"].pop("name", None)
    return body


def _usage(data: Any) -> Usage:
    """The usage by one rule: what was read from a cache, or written into one, is counted beside the input."""
    counted = mapping(data)
    fresh, output = whole(counted.get("input_tokens")), whole(counted.get("output_tokens"))
    read = whole(counted.get("cache_read_input_tokens"))
    written = whole(counted.get("cache_creation_input_tokens"))
    thought = whole(mapping(counted.get("output_tokens_details")).get("thinking_tokens"))
    return Usage(fresh + read + written, output, read, min(thought, output), written)
