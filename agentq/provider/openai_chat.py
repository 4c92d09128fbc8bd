"""Chat completions: the dialect of OpenAI's older interface, and of most other servers and gateways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentq.provider.errors import InvalidRequest, LLMError, TransientError
from agentq.provider.failures import error_of
from agentq.provider.history import Entry, arguments_text, history, json_object, mapping, whole
from agentq.provider.httpmodel import HttpModel
from agentq.provider.schemas import plain, reductions, schema_name, strict
from agentq.provider.types import ChatRequest, ChatResult, ToolCall, Turn, Usage

_ENDED = frozenset({"", "stop", "tool_calls", "end_turn", "tool_use", "stop_sequence", "eos"})
"""How servers say that a reply is whole; some say nothing."""
_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "insufficient_system_resource", "repetition"})
"""How they say that it is not, and that it is their own doing (DeepSeek, vLLM, OpenRouter)."""
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FILTERED = frozenset({"content_filter", "safety", "recitation", "sensitive", "refusal"})
_KNOWN_OF_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call"}
)
_KNOWN_OF_CALL = frozenset({"id", "type", "function", "index"})
_KNOWN_OF_FUNCTION = frozenset({"name", "arguments"})
_EMPTY_RESULT = "(empty)"
_BRIDGE = "Understood."
"""What the assistant says between a tool's result and the user, where a server demands a word of it."""
_REFUSAL_CHARS = 200


class OpenAIChat(HttpModel):
    """One model behind `POST {base_url}/chat/completions`."""

    dialect = "openai-chat"
    path = "/chat/completions"
    vendor = "openai"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    public_url = "https://api.openai.com/v1"
    own_keys = frozenset(
        {"model", "messages", "max_tokens", "max_completion_tokens", "tools", "stream", "stream_options", "n"}
    )

    def headers(self, key: str | None) -> dict[str, str]:
        """A bearer token; none where the server needs none."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, req: ChatRequest) -> dict[str, Any]:
        """The request. Tools that may not be called are left out: some models call what they read of."""
        by = self.by if self.quirks.keeps_turns else ""
        entries = history(req.messages, by=by, calls_in=_calls_of_turn, ids=self.quirks.call_ids)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(req, entries),
            self.quirks.output_cap: req.max_output_tokens,
        }
        if req.temperature is not None and self.quirks.temperature:
            body["temperature"] = req.temperature
        if req.stop:
            body["stop"] = list(req.stop)
        body |= self._tools(req, entries)
        if "tools" in body and self.quirks.effort_with_tools is not None:
            body["reasoning_effort"] = self.quirks.effort_with_tools
        if req.json_schema is not None and (self.quirks.schema_with_tools or "tools" not in body):
            body |= self._format(req.json_schema)
        return body

    def fitting(self, body: dict[str, Any]) -> dict[str, Any]:
        """Without switches of tools where there are none, or where the model refuses them."""
        dropped = set() if self.quirks.parallel_tool_calls else {"parallel_tool_calls"}
        if "tools" not in body:
            dropped |= {"parallel_tool_calls", "tool_choice"}
        return {key: value for key, value in body.items() if key not in dropped}

    def result(self, data: Mapping[str, Any], req: ChatRequest) -> ChatResult:
        """The first choice. Whether it has calls is decided by looking, never by its finish reason."""
        choices = data["choices"]
        if not isinstance(choices, list) or not choices:
            raise ValueError("it has no choices")
        choice = choices[0]
        message = choice.get("message")
        usage = _usage(data.get("usage"))
        finish = str(choice.get("finish_reason") or "").lower()
        self._refuse_failed(choice, finish)
        if not isinstance(message, dict):
            raise ValueError("it has no message")
        calls = _calls(message)
        text = _text(message.get("content"))
        refusal = message.get("refusal")
        notes = list(self.once(self._reductions(req)))
        if isinstance(refusal, str) and refusal and not calls:
            text, finish = text or refusal, "refusal"
            notes.append(f"refused: {refusal[:_REFUSAL_CHARS]}")
        elif finish in _CUT or (calls and finish in _FILTERED) or _fills(data, req):
            finish = "length"
        elif calls:
            finish = "tool_calls"
        else:
            self._refuse_unended(finish)
            finish = "stop"
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
            turn=self._turn(message, calls),
            notes=tuple(notes),
        )

    # ── the request ──────────────────────────────────────────────────────────────────────────────

    def _messages(self, req: ChatRequest, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        # Only the first message may be the system's in many templates: what comes later is a user's.
        told = [req.system] if req.system else []
        first = next((i for i, entry in enumerate(entries) if entry.role != "system"), len(entries))
        told += [entry.text for entry in entries[:first]]
        messages: list[dict[str, Any]] = []
        if told:
            messages.append({"role": self.quirks.system_role, "content": "\n\n".join(told)})
        for entry in entries[first:]:
            if entry.role == "assistant":
                messages.append(self._assistant(entry))
                messages += [
                    {
                        "role": "tool",
                        "tool_call_id": outcome.call_id,
                        "content": outcome.content or _EMPTY_RESULT,
                    }
                    for outcome in entry.outcomes
                ]
            else:
                messages += self._user(entry.text, messages)
        return messages

    def _user(self, text: str, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A user's message, after what stands before it; two in a row may have to be one."""
        said = {"role": "user", "content": text}
        last = before[-1]["role"] if before else ""
        if self.quirks.user_after_tool or last not in {"tool", "user"}:
            return [said]
        if last == "tool":
            return [{"role": "assistant", "content": _BRIDGE}, said]
        said["content"] = f"{before.pop()['content']}\n\n{text}"
        return [said]

    def _assistant(self, entry: Entry) -> dict[str, Any]:
        if entry.turn is not None:
            return _sendable(entry.turn.body)
        message: dict[str, Any] = {"role": "assistant", "content": entry.text}
        if entry.calls:
            if not entry.text:
                message["content"] = None if self.quirks.content_with_calls == "null" else ""
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in entry.calls
            ]
        return message

    def _tools(self, req: ChatRequest, entries: Sequence[Entry]) -> dict[str, Any]:
        called = dict.fromkeys(call.name for entry in entries for call in entry.calls)
        if req.tools and req.tool_choice != "none":
            declared: dict[str, Any] = {"tools": [self._tool(tool) for tool in req.tools]}
            choice = req.tool_choice
            if choice in {"auto", "required"}:
                declared["tool_choice"] = choice
            elif choice is not None:
                declared["tool_choice"] = {"type": "function", "function": {"name": choice}}
            return declared
        if called and self.quirks.forbidden_tools == "declared":
            empty = {"type": "object", "properties": {}}
            tools = list(req.tools) or [{"name": name, "parameters": empty} for name in called]
            return {"tools": [self._tool(tool) for tool in tools], "tool_choice": "none"}
        return {}

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        parameters = tool.get("parameters") or {"type": "object", "properties": {}}
        if self.quirks.schema_keys == "plain":
            parameters, _ = plain(parameters)
        described = {"description": tool["description"]} if tool.get("description") else {}
        return {
            "type": "function",
            "function": {"name": tool["name"], **described, "parameters": dict(parameters)},
        }

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self.quirks.native_schema == "none":
            return {}
        if self.quirks.native_schema == "object":
            return {"response_format": {"type": "json_object"}}
        held: dict[str, Any] = {"name": schema_name(schema)}
        exact = strict(schema)
        if self.quirks.schema_keys == "plain":
            held["schema"], _ = plain(schema)
        elif exact is not None:
            held |= {"schema": exact, "strict": True}
        else:
            held["schema"] = dict(schema)
        return {"response_format": {"type": "json_schema", "json_schema": held}}

    def _reductions(self, req: ChatRequest) -> Iterator[str]:
        """What of the schemas does not reach the model."""
        if self.quirks.schema_keys == "plain":
            held = req.json_schema if self.quirks.native_schema == "schema" else None
            yield from reductions(req.tools, held)

    # ── the reply ────────────────────────────────────────────────────────────────────────────────

    def _refuse_failed(self, choice: Mapping[str, Any], finish: str) -> None:
        """A choice may carry the error by which it ended; what it had written may be billed."""
        if choice.get("error"):
            error = error_of(200, {}, {"error": choice["error"]}, provider=self.provider, model=self.model)
            error.billed = None
            raise error
        if finish in _BROKEN:
            raise self._failed(TransientError, f"the provider failed while it answered ({finish})")

    def _refuse_unended(self, finish: str) -> None:
        if finish in _FILTERED:
            raise self._failed(InvalidRequest, f"the provider withheld the answer ({finish})")
        if finish not in _ENDED:
            raise self._failed(TransientError, f"the answer is not whole: it ended with {finish[:64]!r}")

    def _failed(self, kind: type[LLMError], why: str) -> LLMError:
        return kind(why, provider=self.provider, model=self.model, status_code=200, billed=None)

    def _turn(self, message: dict[str, Any], calls: Sequence[ToolCall]) -> Turn | None:
        """The message itself, where it holds more than text and calls: reasoning, signatures, what is new."""
        content, written = message.get("content"), message.get("tool_calls") or []
        if not self.quirks.keeps_turns or len(written) != len(calls):
            return None
        if content is None or isinstance(content, str):
            parts = [(message, _KNOWN_OF_MESSAGE)]
            for call in written:
                parts += [(call, _KNOWN_OF_CALL), (call["function"], _KNOWN_OF_FUNCTION)]
            if not any(value and key not in known for part, known in parts for key, value in part.items()):
                return None
        return Turn(self.by, {"role": "assistant", **message})


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The calls. An id that is missing is given by whoever takes the reply in; one without a name is none."""
    written = message.get("tool_calls") or ()
    return tuple(
        ToolCall(str(call.get("id") or ""), str(call["function"]["name"]), _arguments(call))
        for call in written
        if call["function"].get("name")
    )


def _calls_of_turn(body: Any) -> list[tuple[str, str]]:
    calls = mapping(body).get("tool_calls") or ()
    return [(str(call.get("id") or ""), str(mapping(call.get("function")).get("name"))) for call in calls]


def _sendable(body: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as it came, but for what its own server refuses: broken arguments, no calls, no content."""
    message = {key: value for key, value in body.items() if value or key != "tool_calls"}
    if "tool_calls" in message:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json_object(_arguments(call))}}
            for call in message["tool_calls"]
        ]
    elif message.get("content") is None:
        message["content"] = ""
    return message


def _arguments(call: Mapping[str, Any]) -> str:
    return arguments_text(call["function"].get("arguments"))


def _text(content: Any) -> str:
    """The words of a content: a text, or parts of which some are text (Mistral's others are thoughts)."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError("its content is neither text nor parts")
    texts = [part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(str(text) for text in texts)


def _usage(data: Any) -> Usage:
    """The usage by one rule. What the total has beyond prompt and completion was thought (Gemini, xAI)."""
    counted = mapping(data)
    read = mapping(counted.get("prompt_tokens_details"))
    written = mapping(counted.get("completion_tokens_details"))
    prompt = whole(counted.get("prompt_tokens"))
    completion = whole(counted.get("completion_tokens"))
    output = max(completion, whole(counted.get("total_tokens")) - prompt)
    thought = max(whole(written.get("reasoning_tokens")), output - completion)
    cached = min(prompt, whole(read.get("cached_tokens")) or whole(counted.get("prompt_cache_hit_tokens")))
    kept = whole(read.get("cache_write_tokens")) or whole(counted.get("cache_creation_input_tokens"))
    return Usage(prompt, output, cached, min(thought, output), min(kept, prompt - cached))


def _fills(data: Mapping[str, Any], req: ChatRequest) -> bool:
    """Whether the reply is as long as it may be: then it was cut off, whatever it says."""
    return whole(mapping(data.get("usage")).get("completion_tokens")) >= req.max_output_tokens
