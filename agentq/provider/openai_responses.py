"""OpenAI's Responses: the dialect of its models that reason. Nothing is stored at the provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentq.provider.errors import InvalidRequest, LLMError, TransientError
from agentq.provider.history import Entry, history, mapping, whole
from agentq.provider.httpmodel import HttpModel
from agentq.provider.items import calls_in, is_cut, kept, refusal_of, sendable, text_of, tool_calls
from agentq.provider.schemas import plain, reductions, schema_name, strict
from agentq.provider.types import ChatRequest, ChatResult, Usage

ENCRYPTED = "reasoning.encrypted_content"
"""Without it a thought refers to what the provider has not stored. A model without thoughts refuses it."""
LEAST_OUTPUT_TOKENS = 16
_EMPTY_RESULT = "(empty)"
_REFUSAL_CHARS = 200


class OpenAIResponses(HttpModel):
    """One model behind `POST {base_url}/responses`."""

    dialect = "openai"
    path = "/responses"
    vendor = "openai"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    public_url = "https://api.openai.com/v1"
    own_keys = frozenset(
        {
            "model", "input", "instructions", "max_output_tokens", "tools", "stream", "stream_options",
            "background", "conversation", "previous_response_id", "prompt",
        }
    )  # fmt: skip

    def headers(self, key: str | None) -> dict[str, str]:
        """A bearer token; none where the server needs none."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, req: ChatRequest) -> dict[str, Any]:
        """The request. Tools that may not be called are left out: some models call what they read of."""
        self._check(req)
        by = self.by if self.quirks.keeps_turns else ""
        entries = history(req.messages, by=by, calls_in=calls_in, ids=self.quirks.call_ids)
        first = next((i for i, entry in enumerate(entries) if entry.role != "system"), len(entries))
        body: dict[str, Any] = {
            "model": self.model,
            "input": self._input(entries[first:]),
            "max_output_tokens": req.max_output_tokens,
            "store": False,
        }
        told = [req.system or "", *(entry.text for entry in entries[:first])]
        if any(told):
            body["instructions"] = "\n\n".join(filter(None, told))
        if req.temperature is not None and self.quirks.temperature:
            body["temperature"] = req.temperature
        body |= self._tools(req, entries)
        if req.json_schema is not None and (self.quirks.schema_with_tools or "tools" not in body):
            body |= self._format(req.json_schema)
        return body

    def fitting(self, body: dict[str, Any]) -> dict[str, Any]:
        """With what options may add to as well, and without switches of tools where there are none."""
        dropped = {"format"} if self.quirks.parallel_tool_calls else {"format", "parallel_tool_calls"}
        if "tools" not in body:
            dropped |= {"parallel_tool_calls", "tool_choice"}
        made = {key: value for key, value in body.items() if key not in dropped}
        if "format" in body:
            made["text"] = {**mapping(body.get("text")), "format": body["format"]}
        if self.quirks.reasons:
            made["include"] = list(dict.fromkeys([*(body.get("include") or ()), ENCRYPTED]))
        return made

    def result(self, data: Mapping[str, Any], req: ChatRequest) -> ChatResult:
        """The output. Whether it has calls is decided by looking, never by its status."""
        items = data.get("output")
        reason = self._cut_reason(data)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError("its output is no list of items")
        calls, text, refusal = tool_calls(items), text_of(items), refusal_of(items)
        usage = _usage(data.get("usage"))
        notes = list(self.once(self._reductions(req)))
        cut = bool(reason) or is_cut(items) or usage.output_tokens >= req.max_output_tokens
        if reason == "content_filter" and not calls:
            raise self._failed(InvalidRequest, "the provider withheld the answer (content_filter)")
        if refusal and not calls:
            text, finish = text or refusal, "refusal"
            notes.append(f"refused: {refusal[:_REFUSAL_CHARS]}")
        else:
            finish = "length" if cut else "tool_calls" if calls else "stop"
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
            turn=kept(self.by, items) if self.quirks.keeps_turns and not cut else None,
            notes=tuple(notes),
        )

    # ── the request ──────────────────────────────────────────────────────────────────────────────

    def _check(self, req: ChatRequest) -> None:
        """Refuse what the dialect cannot say: a higher cap than was asked for is more than is reserved."""
        if req.max_output_tokens < LEAST_OUTPUT_TOKENS:
            raise self._invalid(
                f"a cap of {req.max_output_tokens} output tokens is too low for this interface: "
                f"max_output_tokens= is at least {LEAST_OUTPUT_TOKENS}"
            )
        if req.stop:
            raise self._invalid("this interface has no stop sequences: use openai-chat: for them")

    def _input(self, entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
        items: list[Mapping[str, Any]] = []
        for entry in entries:
            if entry.turn is not None and isinstance(entry.turn.body, list):
                items += sendable(entry.turn.body)
            else:
                role = self.quirks.system_role if entry.role == "system" else entry.role
                items += [{"role": role, "content": entry.text}] if entry.text else []
                items += [
                    {
                        "type": "function_call",
                        "call_id": call.id,
                        "name": call.name,
                        "arguments": call.arguments,
                    }
                    for call in entry.calls
                ]
            items += [
                {
                    "type": "function_call_output",
                    "call_id": outcome.call_id,
                    "output": outcome.content or _EMPTY_RESULT,
                }
                for outcome in entry.outcomes
            ]
        if not items:
            raise self._invalid("there is nothing to send")
        return items

    def _tools(self, req: ChatRequest, entries: Sequence[Entry]) -> dict[str, Any]:
        called = dict.fromkeys(call.name for entry in entries for call in entry.calls)
        if req.tools and req.tool_choice != "none":
            declared: dict[str, Any] = {"tools": [self._tool(tool) for tool in req.tools]}
            choice = req.tool_choice
            if choice in {"auto", "required"}:
                declared["tool_choice"] = choice
            elif choice is not None:
                declared["tool_choice"] = {"type": "function", "name": choice}
            return declared
        if called and self.quirks.forbidden_tools == "declared":
            empty = {"type": "object", "properties": {}}
            tools = list(req.tools) or [{"name": name, "parameters": empty} for name in called]
            return {"tools": [self._tool(tool) for tool in tools], "tool_choice": "none"}
        return {}

    def _tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """A declaration. It says that it is not strict: unless told, the provider rewrites the schema so."""
        parameters = tool.get("parameters") or {"type": "object", "properties": {}}
        if self.quirks.schema_keys == "plain":
            parameters, _ = plain(parameters)
        described = {"description": tool["description"]} if tool.get("description") else {}
        return {
            "type": "function",
            "name": tool["name"],
            **described,
            "parameters": dict(parameters),
            "strict": False,
        }

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self.quirks.native_schema == "none":
            return {}
        if self.quirks.native_schema == "object":
            return {"format": {"type": "json_object"}}
        held: dict[str, Any] = {"type": "json_schema", "name": schema_name(schema), "strict": False}
        exact = strict(schema)
        if self.quirks.schema_keys == "plain":
            held["schema"], _ = plain(schema)
        elif exact is not None:
            held |= {"schema": exact, "strict": True}
        else:
            held["schema"] = dict(schema)
        return {"format": held}

    def _reductions(self, req: ChatRequest) -> Iterator[str]:
        """What of the schemas does not reach the model."""
        if self.quirks.schema_keys == "plain":
            held = req.json_schema if self.quirks.native_schema == "schema" else None
            yield from reductions(req.tools, held)

    # ── the reply ────────────────────────────────────────────────────────────────────────────────

    def _cut_reason(self, data: Mapping[str, Any]) -> str:
        """Why the output is not whole, or an empty text.

        Raises:
            TransientError: when it failed, or ended in a way that says nothing of what there is of it.
        """
        status = str(data.get("status") or "completed")
        reason = str(mapping(data.get("incomplete_details")).get("reason") or "")
        if status == "completed":
            return ""
        if status == "incomplete" and reason in {"max_output_tokens", "content_filter"}:
            return reason
        why = f"{status}: {reason}" if reason else status
        raise self._failed(TransientError, f"the answer is not whole ({why[:64]})")

    def _failed(self, kind: type[LLMError], why: str) -> LLMError:
        return kind(why, provider=self.provider, model=self.model, status_code=200, billed=None)

    def _invalid(self, why: str) -> InvalidRequest:
        return InvalidRequest(why, provider=self.provider, model=self.model)


def _usage(data: Any) -> Usage:
    """The usage by one rule. What the total has beyond input and output was thought (xAI)."""
    counted = mapping(data)
    read = mapping(counted.get("input_tokens_details"))
    written = mapping(counted.get("output_tokens_details"))
    prompt, answer = whole(counted.get("input_tokens")), whole(counted.get("output_tokens"))
    output = max(answer, whole(counted.get("total_tokens")) - prompt)
    thought = max(whole(written.get("reasoning_tokens")), output - answer)
    cached = min(prompt, whole(read.get("cached_tokens")))
    kept_tokens = whole(read.get("cache_write_tokens"))
    return Usage(prompt, output, cached, min(thought, output), min(kept_tokens, prompt - cached))
