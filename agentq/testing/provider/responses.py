"""OpenAI Responses: what it refuses, and how it answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentq.testing.provider import chat
from agentq.testing.provider.chat import text_of, too_long
from agentq.testing.provider.checks import (
    LONGEST_CALL_ID,
    check_format,
    check_known,
    check_number,
    check_tool_name,
    check_tools,
    missing,
    wrong_type,
)
from agentq.testing.provider.clock import epoch_s
from agentq.testing.provider.refusal import Refusal, invalid
from agentq.testing.provider.reply import Reply, Usage, pieces, sign
from agentq.testing.provider.request import Tool, json_bytes, text_bytes, tokens_of

PARAMETERS = frozenset(
    {
        "access_programs", "background", "background_options", "context_management", "conversation", "image",
        "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
        "moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier",
        "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs",
        "top_p", "truncation", "user",
    }
)  # fmt: skip
ENCRYPTED = "reasoning.encrypted_content"
_INCLUDES = (
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs", ENCRYPTED, "message.output_text.logprobs",
)  # fmt: skip
_LEAST_OUTPUT = 16
_INCOMPLETE = {"length": "max_output_tokens", "window": "max_output_tokens", "filter": "content_filter"}
_OUTPUT = ("reasoning", "function_call")
Item = Mapping[str, Any]


def read(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the request asks for, checked as the service checks it.

    Raises:
        Refusal: with the service's own sentence.
    """
    check_known(body, PARAMETERS)
    if body.get("previous_response_id") is not None:
        raise invalid(
            f"Previous response with id '{body['previous_response_id']}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    items = _items(body)
    check_history(items)
    stored = body.get("store") is not False
    check_reasoning(items, stored=stored)
    tools = check_tools(body.get("tools"), inner="")
    check_number(body, "max_output_tokens", least=_LEAST_OUTPUT, most=1e9, whole=True)
    check_number(body, "temperature", least=0, most=2, whole=False)
    check_number(body, "top_p", least=0, most=1, whole=False)
    for i, name in enumerate(body.get("include") or ()):
        if name not in _INCLUDES:
            raise invalid(
                f"Invalid value: '{name}'. Supported values are: "
                + ", ".join(f"'{known}'" for known in _INCLUDES),
                param=f"include[{i}]",
                code="invalid_value",
            )
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    return {
        "turn": _turns(items),
        "text": _last_text(items),
        "tools": tools,
        "choice": _choice(body, tools),
        "results": sum(item.get("type") == "function_call_output" for item in items),
        "schema": _schema(body),
        "output_cap": body.get("max_output_tokens"),
        "thinks": isinstance(reasoning, Mapping) and effort != "none",
        "input_tokens": tokens_of(
            text_bytes(items)
            + text_bytes(body.get("instructions"))
            + json_bytes(body.get("tools"))
            + json_bytes(body.get("text"))
        ),
    }


def _items(body: Mapping[str, Any]) -> Sequence[Item]:
    items = body.get("input")
    if items is None:
        raise missing("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise invalid(
            "Invalid type for 'input': expected one of a string or array of input items, "
            f"but got {'an object' if isinstance(items, Mapping) else 'another type'} instead.",
            param="input",
            code="invalid_type",
        )
    if not items:
        raise invalid(
            "Invalid 'input': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param="input",
            code="empty_array",
        )
    for i, item in enumerate(items):
        _check_item(item, f"input[{i}]")
    return items


def _check_item(item: Any, at: str) -> None:
    if not isinstance(item, Mapping):
        raise wrong_type(at, "an object", item)
    match item.get("type", "message"):
        case "message":
            _check_message(item, at)
        case "function_call":
            _need(item, at, "call_id", "name", "arguments")
            check_tool_name(item["name"], f"{at}.name")
        case "function_call_output":
            _need(item, at, "call_id")
            if not isinstance(item.get("output"), str | list):
                raise missing(f"{at}.output")
        case "reasoning":
            _need(item, at, "id")
            if not isinstance(item.get("summary"), list):
                raise missing(f"{at}.summary")
        case "item_reference":
            _need(item, at, "id")
        case kind if not isinstance(kind, str) or not kind.endswith(("_call", "_output", "_item", "_list")):
            raise invalid(
                f"Invalid value: '{kind}'. Supported values are: 'message', 'function_call', "
                "'function_call_output', 'item_reference', and 'reasoning'.",
                param=f"{at}.type",
                code="invalid_value",
            )
    call_id = item.get("call_id")
    if isinstance(call_id, str) and not 1 <= len(call_id) <= LONGEST_CALL_ID:
        raise (
            too_long(f"{at}.call_id", LONGEST_CALL_ID, len(call_id)) if call_id else missing(f"{at}.call_id")
        )
    # Under their own names items are checked by prefix.
    prefix = {"function_call": "fc", "reasoning": "rs", "message": "msg"}.get(item.get("type", "message"))
    own = item.get("id")
    if prefix and isinstance(own, str) and not own.startswith(prefix):
        raise invalid(
            f"Invalid '{at}.id': '{own}'. Expected an ID that begins with '{prefix}'.",
            param=f"{at}.id",
            code="invalid_value",
        )


def _need(item: Item, at: str, *names: str) -> None:
    for name in names:
        if name not in item:
            raise missing(f"{at}.{name}")
        if not isinstance(item[name], str):
            raise wrong_type(f"{at}.{name}", "a string", item[name])


def _check_message(item: Item, at: str) -> None:
    role = item.get("role")
    if role is None:
        raise missing(f"{at}.role")
    if role not in ("system", "developer", "user", "assistant"):
        raise invalid(
            f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
            param=f"{at}.role",
            code="invalid_value",
        )
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise missing(f"{at}.content")
    wanted = (
        ("output_text", "refusal") if role == "assistant" else ("input_text", "input_image", "input_file")
    )
    for j, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in wanted:
            raise invalid(
                f"Invalid value: '{kind}'. Supported values are: "
                + " and ".join(f"'{word}'" for word in wanted)
                + ".",
                param=f"{at}.content[{j}]",
                code="invalid_value",
            )


def check_history(items: Sequence[Item]) -> None:
    """Every call has its output, and every output its call.

    Raises:
        Refusal: when one has not.
    """
    called: dict[str, bool] = {}
    for item in items:
        if item.get("type") == "function_call":
            called[item["call_id"]] = False
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in called:
                raise invalid(
                    f"No tool call found for function call output with call_id {item['call_id']}.",
                    param="input",
                )
            called[item["call_id"]] = True
    for call_id, answered in called.items():
        if not answered:
            raise invalid(f"No tool output found for function call {call_id}.", param="input")


def encrypted(item_id: str) -> str:
    """The encrypted content of a reasoning item, which must come back as it is."""
    return f"gAAAAA{sign('reasoning', item_id)}=="


def check_reasoning(items: Sequence[Item], *, stored: bool) -> None:
    """Reasoning stands right before the item that it led to, and both are there.

    Args:
        items: the input.
        stored: the service keeps items; else reasoning needs its encrypted content.

    Raises:
        Refusal: when it is not so.
    """
    for i, item in enumerate(items):
        own = item.get("id")
        if item.get("type") == "reasoning":
            _check_thought(item, str(own), stored=stored)
            after = items[i + 1] if i + 1 < len(items) else {}
            if not _follows(after, str(own)):
                raise invalid(
                    f"Item '{own}' of type 'reasoning' was provided without its required following item.",
                    param="input",
                )
        elif isinstance(own, str) and (needed := _thought_of(own)):
            before = items[i - 1] if i else {}
            if before.get("id") != needed:
                raise invalid(
                    f"Item '{own}' of type '{item.get('type', 'message')}' was provided without its "
                    "required "
                    f"'reasoning' item: '{needed}'.",
                    param="input",
                )


def _check_thought(item: Item, own: str, *, stored: bool) -> None:
    content = item.get("encrypted_content")
    if content is None and not stored:
        raise Refusal(
            404,
            f"Item with id '{own}' not found. Items are not persisted when `store` is set to false. "
            "Try again with `store` set to true, or remove this item from your input.",
            param="input",
        )
    if content is not None and content != encrypted(own):
        raise invalid(
            f"The encrypted content for item {own} could not be verified. Reason: Encrypted content could "
            "not be "
            "decrypted or parsed.",
            code="invalid_encrypted_content",
        )


def _follows(item: Item, thought: str) -> bool:
    """Whether the item may stand behind the reasoning: the one it led to, or one of which nobody knows."""
    if (
        item.get("type", "message") not in ("message", "function_call")
        or item.get("role", "assistant") != "assistant"
    ):
        return False
    own = item.get("id")
    return own is None or _thought_of(str(own)) == thought


def _thought_of(own: str) -> str | None:
    """The id of the reasoning that led to this item; None when none did. Only the first item has one."""
    prefix, _, stem = own.partition("_")
    if prefix not in ("fc", "msg") or not stem.startswith("1") or not stem.endswith("00") or len(stem) != 26:
        return None
    return f"rs_{stem[:-2]}00"


def _turns(items: Sequence[Item]) -> int:
    """How many times the assistant spoke: what stands together is one turn."""
    own = [item.get("type") in _OUTPUT or item.get("role") == "assistant" for item in items]
    return sum(flag for flag, _ in itertools.groupby(own))


def _choice(body: Mapping[str, Any], tools: tuple[Tool, ...]) -> str:
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            return str(choice.get("mode", "auto"))
        name = choice.get("name")
        if name not in [tool.name for tool in tools]:
            raise invalid(
                f"Tool choice 'function' not found in 'tools' parameter: '{name}'.", param="tool_choice"
            )
        return str(name)
    if choice not in ("auto", "none", "required"):
        raise invalid(
            f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'.",
            param="tool_choice",
            code="invalid_value",
        )
    return str(choice)


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    text = body.get("text")
    wanted = text.get("format") if isinstance(text, Mapping) else None
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_schema":
        return check_format(wanted, "text.format")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "text":
        raise invalid(
            f"Invalid value: '{kind}'. Supported values are: 'json_object', 'json_schema', and 'text'.",
            param="text.format.type",
            code="invalid_value",
        )
    return None


def _last_text(items: Sequence[Item]) -> str:
    for item in reversed(items):
        if item.get("role") == "user":
            return text_of(item.get("content"))
    return ""


refusal = chat.refusal
kind_of = chat.kind_of


def answer(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The response."""
    reason = _INCOMPLETE.get(reply.stop)
    now = float(epoch_s())
    text = body.get("text") if isinstance(body.get("text"), Mapping) else {}
    return {
        "id": f"resp_{reply.stem}",
        "object": "response",
        "created_at": now,
        "status": "incomplete" if reason else "completed",
        "background": False,
        "completed_at": None if reason else now,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "model": body["model"],
        "output": _output(body, reply),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **(body.get("reasoning") or {})},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": body.get("store") is not False,
        "temperature": body.get("temperature", 1.0),
        "text": {"format": {"type": "text"}, "verbosity": "medium", **(text or {})},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_shown(tool) for tool in body.get("tools") or ()],
        "top_logprobs": 0,
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation") or "disabled",
        "usage": _usage(reply.usage),
        "user": body.get("user"),
        "metadata": body.get("metadata") or {},
    }


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return dict(tool)
    return {"description": None, "parameters": None, "strict": True, **tool}


def _output(body: Mapping[str, Any], reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if reply.stop in _INCOMPLETE else "completed"
    if reply.thinking:
        own = f"rs_{reply.stem}00"
        reasoning = body.get("reasoning")
        shown = isinstance(reasoning, Mapping) and reasoning.get("summary") is not None
        item = {
            "id": own,
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": reply.thinking}] if shown else [],
        }
        if ENCRYPTED in (body.get("include") or ()):
            item["encrypted_content"] = encrypted(own)
        items.append(item)
    content: list[dict[str, Any]]
    if reply.stop == "refusal":
        content = [{"type": "refusal", "refusal": reply.text or "I can't help with that."}]
        items.append(_message(reply, content, status))
    elif reply.text or not reply.calls:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        items.append(_message(reply, content, status))
    first = 1 if reply.text else 0
    for i, call in enumerate(reply.calls, start=first):
        items.append(
            {
                "id": f"fc_{reply.stem}{i:02x}",
                "type": "function_call",
                "status": "incomplete" if status == "incomplete" and call is reply.calls[-1] else "completed",
                "arguments": call.arguments,
                "call_id": call.id,
                "name": call.name,
                **call.extra,
            }
        )
    return items


def _message(reply: Reply, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.stem}00",
        "type": "message",
        "status": status,
        "content": content,
        "role": "assistant",
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def events(body: Mapping[str, Any], done: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:  # noqa: ARG001
    """The response as a stream of (event, data)."""
    counter = itertools.count()

    def event(kind: str, **fields: Any) -> tuple[str, Any]:
        return kind, {"type": kind, "sequence_number": next(counter), **fields}

    opened = {**done, "status": "in_progress", "completed_at": None, "output": [], "usage": None}
    opened |= {"incomplete_details": None, "error": None}
    yield event("response.created", response=opened)
    yield event("response.in_progress", response=opened)
    for i, item in enumerate(done["output"]):
        match item["type"]:
            case "message":
                shell = {**item, "content": [], "status": "in_progress"}
            case "function_call":
                shell = {**item, "arguments": "", "status": "in_progress"}
            case _:
                shell = {**item, "summary": []}
        yield event("response.output_item.added", output_index=i, item=shell)
        for kind, fields in _inside(item):
            yield event(kind, output_index=i, item_id=item["id"], **fields)
        yield event("response.output_item.done", output_index=i, item=item)
    last = done["status"] if done["status"] in ("completed", "incomplete", "failed") else "completed"
    yield event(f"response.{last}", response=done)


def _inside(item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between the beginning and the end of an item."""
    if item["type"] == "function_call":
        if isinstance(item["arguments"], str):
            for piece in pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {"delta": piece}
        yield (
            "response.function_call_arguments.done",
            {"arguments": item["arguments"], "name": item["name"]},
        )
    for i, part in enumerate(item.get("summary") or ()):
        where = {"summary_index": i}
        yield "response.reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}
        for piece in pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**where, "delta": piece}
        yield "response.reasoning_summary_text.done", {**where, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**where, "part": part}
    for i, part in enumerate(item.get("content") or ()):
        inside: dict[str, Any] = {"content_index": i}
        if part["type"] == "refusal":
            yield "response.content_part.added", {**inside, "part": {**part, "refusal": ""}}
            for piece in pieces(part["refusal"]):
                yield "response.refusal.delta", {**inside, "delta": piece}
            yield "response.refusal.done", {**inside, "refusal": part["refusal"]}
        else:
            yield "response.content_part.added", {**inside, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                yield "response.output_text.delta", {**inside, "delta": piece, "logprobs": []}
            yield "response.output_text.done", {**inside, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**inside, "part": part}


def broken(error: Refusal) -> tuple[str, Any]:
    """An error in the middle of a stream."""
    return "error", {
        "type": "error",
        "code": error.code or error.kind or kind_of(error.status),
        "message": error.message,
        "param": error.param,
        "sequence_number": 0,
    }
