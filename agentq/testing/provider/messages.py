"""Anthropic Messages: what it refuses, and how it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentq.testing.provider.chat import text_of
from agentq.testing.provider.checks import open_object
from agentq.testing.provider.refusal import Refusal, invalid
from agentq.testing.provider.reply import Reply, Usage, pieces, sign
from agentq.testing.provider.request import Tool, json_bytes, text_bytes, tokens_of

PARAMETERS = frozenset(
    {
        "cache_control", "container", "diagnostics", "inference_geo", "max_tokens", "messages", "metadata",
        "model", "output_config", "service_tier", "speed", "stop_sequences", "stream", "system",
        "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "user_profile_id",
        "workspace_id",
    }
)  # fmt: skip
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = ("thinking", "redacted_thinking")
_STOPS = {
    "stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal",
    "refusal": "refusal", "pause": "pause_turn", "window": "model_context_window_exceeded",
}  # fmt: skip
_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_LEAST_BUDGET = 1_024
_OTHERS = ("image", "document", "search_result")
Block = Mapping[str, Any]


def read(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the request asks for, checked as the service checks it.

    Raises:
        Refusal: with the service's own sentence.
    """
    for name in body:
        if name not in PARAMETERS:
            raise invalid(f"{name}: Extra inputs are not permitted")
    cap = body.get("max_tokens")
    if cap is None:
        raise invalid("max_tokens: Field required")
    if not isinstance(cap, int) or isinstance(cap, bool):
        raise invalid("max_tokens: Input should be a valid integer")
    if cap < 1:
        raise invalid("max_tokens: must be greater than or equal to 1")
    turns = _turns(body)
    tools = _tools(body.get("tools"))
    if not tools and any(
        block["type"] in ("tool_use", "tool_result") for _, blocks in turns for block in blocks
    ):
        raise invalid("Requests which include `tool_use` or `tool_result` blocks must define tools")
    choice = _choice(body.get("tool_choice"), tools)
    thinks = _thinks(body, cap, choice)
    check_history(turns, model=str(body["model"]), enforced=thinks == "enabled")
    _system(body.get("system"))
    return {
        "turn": sum(role == "assistant" for role, _ in turns),
        "text": _last_text(turns),
        "tools": tools,
        "choice": choice,
        "results": sum(block["type"] == "tool_result" for _, blocks in turns for block in blocks),
        "schema": _schema(body),
        "output_cap": cap,
        "thinks": thinks in ("enabled", "adaptive", "between_tools"),
        "input_tokens": tokens_of(
            text_bytes([blocks for _, blocks in turns])
            + text_bytes(body.get("system"))
            + json_bytes(body.get("tools"))
            + json_bytes(body.get("output_config"))
        ),
    }


def _turns(body: Mapping[str, Any]) -> list[tuple[str, list[Block]]]:
    """The messages as (role, blocks), each block of the right shape."""
    messages = body.get("messages")
    if messages is None:
        raise invalid("messages: Field required")
    if not isinstance(messages, list):
        raise invalid("messages: Input should be a valid list")
    if not messages:
        raise invalid("messages: at least one message is required")
    turns = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise invalid(f"messages.{i}: Input should be a valid dictionary")
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise invalid(f"messages.{i}.role: Input should be 'user', 'assistant' or 'system'")
        if i == 0 and role != "user":
            raise invalid('messages: first message must use the "user" role')
        turns.append((str(role), _blocks(message, i, last=i == len(messages) - 1)))
    return turns


def _blocks(message: Mapping[str, Any], i: int, *, last: bool) -> list[Block]:
    content = message.get("content")
    if content is None:
        raise invalid(f"messages.{i}.content: Field required")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise invalid(f"messages.{i}.content: Input should be a valid list")
    final = last and message["role"] == "assistant"
    if not content and not final:
        raise invalid(
            f"messages.{i}: all messages must have non-empty content except for the optional final "
            "assistant "
            "message"
        )
    for j, block in enumerate(content):
        _check_block(block, f"messages.{i}.content.{j}", str(message["role"]))
    if (
        final
        and content
        and content[-1]["type"] == "text"
        and content[-1]["text"] != content[-1]["text"].rstrip()
    ):
        raise invalid("messages: final assistant content cannot end with trailing whitespace")
    return content


def _check_block(block: Any, at: str, role: str) -> None:
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise invalid(f"{at}.type: Field required")
    if block["type"] in _OTHERS:
        return
    match block["type"]:
        case "text":
            _check_text(block, at)
        case "tool_use":
            _need(block, at, {"id": str, "name": str, "input": Mapping})
            if role != "assistant":
                raise invalid(f"{at}: `tool_use` blocks can only be in `assistant` messages")
            if not _CALL_ID.fullmatch(block["id"]):
                raise invalid(f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not _TOOL_NAME.fullmatch(block["name"]):
                raise invalid(f"{at}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        case "tool_result":
            _need(block, at, {"tool_use_id": str})
            if role != "user":
                raise invalid(f"{at}: `tool_result` blocks can only be in `user` messages")
            _check_inner(block.get("content"), at)
        case "thinking":
            _need(block, at, {"thinking": str, "signature": str})
        case "redacted_thinking":
            _need(block, at, {"data": str})
        case kind:
            raise invalid(
                f"{at}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
            )


def _check_inner(content: Any, at: str) -> None:
    for k, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, Mapping) or part.get("type") not in ("text", *_OTHERS):
            raise invalid(f"{at}.tool_result.content.{k}: Input tag does not match any of the expected tags")
        if part["type"] == "text":
            _check_text(part, f"{at}.tool_result.content.{k}")


def _check_text(block: Block, at: str) -> None:
    _need(block, at, {"text": str})
    if not block["text"]:
        raise invalid("messages: text content blocks must be non-empty")
    if not block["text"].strip():
        raise invalid("messages: text content blocks must contain non-whitespace text")


def _need(block: Block, at: str, fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        if name not in block:
            raise invalid(f"{at}.{block['type']}.{name}: Field required")
        if not isinstance(block[name], kind):
            wanted = "string" if kind is str else "dictionary"
            raise invalid(f"{at}.{block['type']}.{name}: Input should be a valid {wanted}")


def check_history(turns: Sequence[tuple[str, list[Block]]], *, model: str, enforced: bool) -> None:
    """Every call has its result in the next message, and thinking is as it was given.

    Args:
        turns: the messages as (role, blocks).
        model: whose thinking it must be.
        enforced: the last assistant's turn must begin with thinking when it has calls.

    Raises:
        Refusal: when it is not so.
    """
    seen: set[str] = set()
    asked: list[str] = []
    for i, (role, blocks) in enumerate(turns):
        if asked or role == "user":
            _check_results(i, blocks if role == "user" else [], asked)
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(asked)) < len(asked) or seen & set(asked):
            raise invalid(f"messages.{i}: `tool_use` ids must be unique")
        seen |= set(asked)
        if role == "assistant":
            for j, block in enumerate(blocks):
                _check_thinking(block, f"messages.{i}.content.{j}", model)
            if i == len(turns) - 1 and blocks and blocks[-1]["type"] in _THINKING:
                raise invalid(f"messages.{i}: The final block in an assistant message cannot be `thinking`.")
    _check_results(len(turns), [], asked)
    if enforced:
        _check_order(turns)


def _check_results(i: int, blocks: list[Block], asked: list[str]) -> None:
    leading: list[str] = []
    for block in blocks:
        if block["type"] != "tool_result":
            break
        leading.append(block["tool_use_id"])
    lost = [call_id for call_id in asked if call_id not in leading]
    if lost:
        raise invalid(
            f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(lost)}. Each `tool_use` block must have a corresponding `tool_result` block in "
            "the next "
            "message."
        )
    answered: set[str] = set()
    for j, block in enumerate(blocks):
        if block["type"] != "tool_result":
            continue
        if block["tool_use_id"] not in asked:
            raise invalid(
                f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` "
                "block in the "
                "previous message."
            )
        if block["tool_use_id"] in answered:
            raise invalid(
                f"messages.{i}.content.{j}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {block['tool_use_id']}"
            )
        answered.add(block["tool_use_id"])


def signature(thinking: str, model: str) -> str:
    """What is given with a thinking block, and must come back with the very text."""
    return f"EuYB{sign('thinking', thinking, model)}=="


def _check_thinking(block: Block, at: str, model: str) -> None:
    if block["type"] == "thinking" and block["signature"] != signature(block["thinking"], model):
        raise invalid(f"{at}: Invalid `signature` in `thinking` block")
    if block["type"] == "redacted_thinking" and block["data"] != signature("", model):
        raise invalid(f"{at}: Invalid `data` in `redacted_thinking` block")


def _check_order(turns: Sequence[tuple[str, list[Block]]]) -> None:
    for i in range(len(turns) - 1, -1, -1):
        role, blocks = turns[i]
        if role != "assistant" or not blocks:
            continue
        if any(block["type"] == "tool_use" for block in blocks) and blocks[0]["type"] not in _THINKING:
            raise invalid(
                f"messages.{i}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must "
                "start with a "
                "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
            )
        return


def _tools(tools: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise invalid("tools: Input should be a valid list")
    known: list[Tool] = []
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise invalid(f"tools.{i}: Input should be a valid dictionary")
        if tool.get("type") not in (None, "custom"):
            continue  # the service's own tools are of no matter here
        name, schema = tool.get("name"), tool.get("input_schema")
        if not isinstance(name, str):
            raise invalid(f"tools.{i}.custom.name: Field required")
        if not _TOOL_NAME.fullmatch(name):
            raise invalid(f"tools.{i}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if not isinstance(schema, Mapping):
            raise invalid(f"tools.{i}.custom.input_schema: Field required")
        if schema.get("type") != "object":
            raise invalid(f"tools.{i}.custom.input_schema.type: Input should be 'object'")
        if tool.get("strict") and open_object(schema):
            raise invalid(
                f"tools.{i}.custom: For 'object' type, 'additionalProperties' must be explicitly set to false"
            )
        if name in [other.name for other in known]:
            raise invalid("tools: Tool names must be unique.")
        known.append(Tool(name, schema))
    return tuple(known)


def _choice(choice: Any, tools: tuple[Tool, ...]) -> str:
    if choice is None:
        return "auto"
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in ("auto", "any", "tool", "none"):
        raise invalid(
            "tool_choice: Input tag does not match any of the expected tags: 'auto', 'any', 'tool', 'none'"
        )
    if kind in ("any", "tool", "auto") and not tools:
        raise invalid("tool_choice: `tool_choice` may only be specified while providing `tools`.")
    if kind == "tool":
        name = choice.get("name")
        if name not in [tool.name for tool in tools]:
            raise invalid(f"tool_choice: Tool '{name}' not found in provided tools")
        return str(name)
    return "required" if kind == "any" else str(kind)


def _thinks(body: Mapping[str, Any], cap: int, choice: str) -> str:
    thinking = body.get("thinking")
    if thinking is None:
        return "disabled"
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
        raise invalid(
            "thinking: Input tag does not match any of the expected tags: 'adaptive', 'disabled', 'enabled'"
        )
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int):
            raise invalid("thinking.enabled.budget_tokens: Field required")
        if budget < _LEAST_BUDGET:
            raise invalid("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if budget >= cap:
            raise invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if kind != "disabled":
        if choice not in ("auto", "none"):
            raise invalid("Thinking may not be enabled when tool_choice forces tool use.")
        if body.get("temperature") not in (None, 1):
            raise invalid("`temperature` may only be set to 1 when thinking is enabled.")
    return str(kind)


def _system(system: Any) -> None:
    if isinstance(system, list):
        for i, block in enumerate(system):
            if not isinstance(block, Mapping) or block.get("type") != "text":
                raise invalid(f"system.{i}.type: Input should be 'text'")
            if not block.get("text"):
                raise invalid("system: text content blocks must be non-empty")
    elif system is not None and not isinstance(system, str):
        raise invalid("system: Input should be a valid string")


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, Mapping) else None
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        raise invalid("output_config.format.type: Input should be 'json_schema'")
    schema = wanted.get("schema")
    if not isinstance(schema, Mapping):
        raise invalid("output_config.format.schema: Field required")
    if open_object(schema):
        raise invalid(
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly "
            "set to false"
        )
    return schema


def _last_text(turns: Sequence[tuple[str, list[Block]]]) -> str:
    for role, blocks in reversed(turns):
        if role == "user" and (text := text_of(blocks)):
            return text
    return ""


def refusal(refused: Refusal, request_id: str) -> dict[str, Any]:
    """The body of an error."""
    error: dict[str, Any] = {"type": refused.kind or kind_of(refused.status), "message": refused.message}
    if refused.code:
        error["details"] = {"error_code": refused.code}
    return {"type": "error", "error": error, "request_id": request_id}


def kind_of(status: int) -> str:
    """Anthropic's `type` of an error with this status."""
    return _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")


def answer(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The message."""
    content: list[dict[str, Any]] = []
    model = str(body["model"])
    if reply.thinking and reply.redacted:
        content.append({"type": "redacted_thinking", "data": signature("", model)})
    elif reply.thinking:
        thinking = body.get("thinking")
        hidden = isinstance(thinking, Mapping) and thinking.get("display") == "omitted"
        text = "" if hidden else reply.thinking
        content.append({"type": "thinking", "thinking": text, "signature": signature(text, model)})
    if reply.text:
        content.append({"type": "text", "text": reply.text, "citations": None})
    for call in reply.calls:
        content.append(
            {
                "type": "tool_use",
                "id": call.id.replace("call_", "toolu_", 1),
                "name": call.name,
                "input": _input(call.arguments),
                **call.extra,
            }
        )
    stop = _STOPS.get(reply.stop, reply.stop)
    details = {"type": "refusal", "category": None, "explanation": None} if stop == "refusal" else None
    return {
        "id": f"msg_{reply.stem}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": details,
        "container": None,
        "usage": _usage(reply.usage),
    }


def _input(arguments: Any) -> Any:
    """The arguments as the object that they must be here; what is none becomes an empty one."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached - usage.cache_written,
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def events(body: Mapping[str, Any], done: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:  # noqa: ARG001
    """The message as a stream of (event, data)."""
    usage = done.get("usage")
    start = {**done, "content": [], "stop_reason": None, "stop_details": None}
    if usage:
        start["usage"] = {**usage, "output_tokens": 1}
    yield _event("message_start", message=start)
    for i, block in enumerate(done["content"]):
        shell, deltas = _opened(block)
        yield _event("content_block_start", index=i, content_block=shell)
        if i == 0:
            yield _event("ping")
        for delta in deltas:
            yield _event("content_block_delta", index=i, delta=delta)
        yield _event("content_block_stop", index=i)
    delta = {name: done[name] for name in ("stop_reason", "stop_sequence", "stop_details", "container")}
    counted = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    last = {"usage": {name: usage[name] for name in counted}} if usage else {}
    yield _event("message_delta", delta=delta, **last)
    yield _event("message_stop")


def _opened(block: Block) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": text} for text in pieces(block["text"])
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": text} for text in pieces(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
        case "tool_use":
            written = json.dumps(block["input"], ensure_ascii=False)
            parts = ["", *pieces(written)]
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": text} for text in parts
            ]
    return dict(block), []


def _event(name: str, **fields: Any) -> tuple[str, Any]:
    return name, {"type": name, **fields}


def broken(error: Refusal) -> tuple[str, Any]:
    """An error in the middle of a stream."""
    body = refusal(error, "")
    del body["request_id"]
    return "error", body
