"""OpenAI Chat Completions: what it refuses, and how it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from agentq.testing.provider.reply import Reply, Said, Usage, pieces
from agentq.testing.provider.request import Tool, json_bytes, text_bytes, tokens_of

PARAMETERS = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "moderation",
        "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format",
        "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options",
        "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options",
    }
)  # fmt: skip
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_STOPS = {
    "calls": "tool_calls",
    "filter": "content_filter",
    "refusal": "stop",
    "pause": "stop",
    "window": "length",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def read(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the request asks for, checked as the service checks it.

    Raises:
        Refusal: with the service's own sentence.
    """
    check_known(body, PARAMETERS)
    messages = _messages(body)
    tools = _tools(body)
    check_history(messages)
    check_number(body, "temperature", least=0, most=2, whole=False)
    check_number(body, "top_p", least=0, most=1, whole=False)
    effort = body.get("reasoning_effort")
    if effort is not None and effort not in _EFFORTS:
        raise invalid(
            f"Invalid value: '{effort}'. Supported values are: "
            + ", ".join(f"'{word}'" for word in _EFFORTS),
            param="reasoning_effort",
            code="invalid_value",
        )
    if body.get("stream_options") is not None and not body.get("stream"):
        raise invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    return {
        "turn": sum(message.get("role") == "assistant" for message in messages),
        "text": _last_text(messages),
        "tools": tools,
        "choice": _choice(body, tools),
        "results": sum(message.get("role") == "tool" for message in messages),
        "schema": _schema(body, messages),
        "output_cap": _cap(body),
        "thinks": effort not in (None, "none"),
        "input_tokens": tokens_of(
            text_bytes(messages) + json_bytes(body.get("tools")) + json_bytes(body.get("response_format"))
        ),
    }


def _messages(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if "messages" not in body:
        raise missing("messages")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array of objects", messages)
    if not messages:
        raise invalid(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param="messages",
            code="empty_array",
        )
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise wrong_type(at, "an object", message)
        role = message.get("role")
        if role is None:
            raise missing(f"{at}.role")
        if role not in _ROLES:
            raise invalid(
                f"Invalid value: '{role}'. Supported values are: "
                + ", ".join(f"'{word}'" for word in _ROLES[:-1])
                + f", and '{_ROLES[-1]}'.",
                param=f"{at}.role",
                code="invalid_value",
            )
        _check_content(message, at)
        if role == "assistant" and message.get("tool_calls") is not None:
            _check_calls(message["tool_calls"], f"{at}.tool_calls")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise missing(f"{at}.tool_call_id")
    return messages


def _check_content(message: Mapping[str, Any], at: str) -> None:
    content = message.get("content")
    if content is None:
        if message["role"] == "assistant" and (message.get("tool_calls") or message.get("refusal")):
            return
        raise invalid(
            f"Invalid value for 'content': expected a string, got null. (at {at}.content)",
            param=f"{at}.content",
        )
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(
            f"Invalid type for '{at}.content': expected one of a string or array of objects, "
            f"but got {'an object' if isinstance(content, Mapping) else 'another type'} instead.",
            param=f"{at}.content",
            code="invalid_type",
        )
    if not content:
        raise invalid(
            f"Invalid '{at}.content': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param=f"{at}.content",
            code="empty_array",
        )
    for j, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise missing(f"{at}.content[{j}].type")


def _check_calls(calls: Any, at: str) -> None:
    if not isinstance(calls, list):
        raise wrong_type(at, "an array of objects", calls)
    if not calls:
        raise invalid(
            f"Invalid '{at}': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param=at,
            code="empty_array",
        )
    for j, call in enumerate(calls):
        here = f"{at}[{j}]"
        if not isinstance(call, Mapping):
            raise wrong_type(here, "an object", call)
        for name in ("id", "type"):
            if not isinstance(call.get(name), str):
                raise missing(f"{here}.{name}")
        if len(call["id"]) > LONGEST_CALL_ID:
            raise too_long(f"{here}.id", LONGEST_CALL_ID, len(call["id"]))
        function = call.get("function")
        if not isinstance(function, Mapping):
            raise missing(f"{here}.function")
        if not isinstance(function.get("name"), str):
            raise missing(f"{here}.function.name")
        check_tool_name(function["name"], f"{here}.function.name")
        if not isinstance(function.get("arguments"), str):
            raise wrong_type(f"{here}.function.arguments", "a string", function.get("arguments"))


def too_long(param: str, most: int, length: int) -> Refusal:
    """A text that is longer than the service takes."""
    return invalid(
        f"Invalid '{param}': string too long. Expected a string with maximum length {most}, "
        f"but got a string with length {length} instead.",
        param=param,
        code="string_above_max_length",
    )


def check_history(messages: Sequence[Mapping[str, Any]]) -> None:
    """Every call has its result right behind its message, and every result its call.

    Raises:
        Refusal: when one has not.
    """
    open_ids: list[str] = []
    asked: set[str] = set()
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in asked:
                raise invalid(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                    "message "
                    "with 'tool_calls'.",
                    param=f"messages.[{i}].role",
                )
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            continue
        _nothing_open(open_ids, i)
        calls = message.get("tool_calls") or () if message["role"] == "assistant" else ()
        open_ids = [call["id"] for call in calls]
        asked = set(open_ids)
    _nothing_open(open_ids, len(messages) - 1)


def _nothing_open(open_ids: list[str], at: int) -> None:
    if open_ids:
        raise invalid(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(open_ids),
            param=f"messages.[{at}].role",
        )


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = body.get("tools")
    if tools == []:
        raise invalid(
            "Invalid 'tools': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            param="tools",
            code="empty_array",
        )
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                raise invalid(
                    f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.",
                    param=name,
                )
    return check_tools(tools, inner="function")


def _choice(body: Mapping[str, Any], tools: tuple[Tool, ...]) -> str:
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if name not in [tool.name for tool in tools]:
            raise invalid(
                f"Invalid value for 'tool_choice': tool '{name}' is not one of the 'tools'.",
                param="tool_choice",
            )
        return str(name)
    if choice not in ("auto", "none", "required"):
        raise invalid(
            f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'.",
            param="tool_choice",
            code="invalid_value",
        )
    return str(choice)


def _schema(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    wanted = body.get("response_format")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping) or wanted.get("type") not in ("text", "json_object", "json_schema"):
        raise invalid(
            "Invalid value for 'response_format.type'. Supported values are: 'json_object', 'json_schema', "
            "and 'text'.",
            param="response_format.type",
            code="invalid_value",
        )
    if wanted["type"] == "json_object":
        if "json" not in str([message.get("content") for message in messages]).lower():
            raise invalid(
                "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                "'json_object'.",
                param="messages",
            )
        return {"type": "object"}
    if wanted["type"] == "json_schema":
        return check_format(wanted.get("json_schema"), "response_format.json_schema")
    return None


def _cap(body: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    if len(names) > 1:
        raise invalid(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
        )
    for name in names:
        check_number(body, name, least=1, most=1e9, whole=True)
        return int(body[name])
    return None


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return text_of(message.get("content"))
    return ""


def text_of(content: Any) -> str:
    """The text of a message, whichever form its content has."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(
        part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    )


def refusal(refused: Refusal, request_id: str) -> dict[str, Any]:  # noqa: ARG001 - not in this body
    """The body of an error."""
    return {
        "error": {
            "message": refused.message,
            "type": refused.kind or kind_of(refused.status),
            "param": refused.param,
            "code": refused.code,
        }
    }


def kind_of(status: int) -> str:
    """OpenAI's `type` of an error with this status."""
    if status == 429:
        return "requests"
    return "server_error" if status >= 500 else "invalid_request_error"


def answer(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The completion."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.stop == "refusal":
        message |= {"content": None, "refusal": reply.text or "I can't help with that."}
    elif not reply.calls:
        message["content"] = reply.text
    message["annotations"] = []
    if reply.shows_reasoning and reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [_said(call) for call in reply.calls]
    return {
        "id": f"chatcmpl-{reply.stem}",
        "object": "chat.completion",
        "created": epoch_s(),
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": _STOPS.get(reply.stop, reply.stop),
            }
        ],
        "usage": _usage(reply.usage),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _said(call: Said) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        **call.extra,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def events(body: Mapping[str, Any], done: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The completion as a stream of (event, data); chunks have no event name."""
    options = body.get("stream_options")
    counted = isinstance(options, Mapping) and bool(options.get("include_usage"))
    frame = {name: done[name] for name in ("id", "created", "model", "service_tier", "system_fingerprint")}
    frame["object"] = "chat.completion.chunk"

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> tuple[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return "", {**frame, "choices": [choice], **({"usage": None} if counted else {})}

    choice = done["choices"][0]
    message = choice["message"]
    yield chunk({"role": "assistant", "content": None if message.get("tool_calls") else "", "refusal": None})
    for name in ("reasoning_content", "content", "refusal"):
        for piece in pieces(message.get(name) or ""):
            yield chunk({name: piece})
    for i, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        whole = not isinstance(arguments, str)
        first = {**call, "function": {**call["function"], "arguments": arguments if whole else ""}}
        yield chunk({"tool_calls": [{"index": i, **first}]})
        for piece in () if whole else pieces(arguments):
            yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if counted and done.get("usage"):
        yield "", {**frame, "choices": [], "usage": done["usage"]}
    yield "", "[DONE]"


def broken(error: Refusal) -> tuple[str, Any]:
    """An error in the middle of a stream."""
    return "", refusal(error, "")
