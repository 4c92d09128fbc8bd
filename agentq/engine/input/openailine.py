"""A line of an OpenAI batch file: `custom_id, method, url, body`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentq.engine.input.batchline import agent_of_call, body_of, call_of, fields_of
from agentq.engine.input.content import as_input, messages_of, text_of

CHAT_URL, RESPONSES_URL = "/v1/chat/completions", "/v1/responses"
_KEYS = ("custom_id", "method", "url", "body")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Azure's files leave the version out.
_DIALECTS = {
    CHAT_URL: "openai-chat",
    CHAT_URL.removeprefix("/v1"): "openai-chat",
    RESPONSES_URL: "openai",
    RESPONSES_URL.removeprefix("/v1"): "openai",
}


def openai_line(value: Mapping[str, Any], with_agent: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields of its row, and what it sends beside its messages unless an agent does the work.

    Args:
        with_agent: an agent is named for all rows; the line may name one too.

    Raises:
        ValueError: for what cannot be run.
    """
    fields = fields_of(value, _KEYS)
    for key in _KEYS[1:]:
        if value.get(key) is None:
            raise ValueError(f"the line has no {key!r}; such a line has {', '.join(_KEYS)}")
    if value["method"] != "POST":
        raise ValueError(f"'method' is \"POST\", not {value['method']!r}")
    url = value["url"]
    if not isinstance(url, str) or url not in _DIALECTS:
        raise ValueError(f"'url' is {CHAT_URL} or {RESPONSES_URL}, not {url!r}")
    body = body_of(value, "body")
    exact = not (with_agent or fields.get("agent"))
    if _DIALECTS[url] == "openai-chat":
        spoken: tuple[str, ...] = ("messages",)
        messages = messages_of(body.get("messages"), "body.messages", roles=_ROLES, exact=exact)
    else:
        spoken = ("input", "instructions")
        messages = _response_messages(body, exact)
    fields["input"] = as_input(messages)
    if not exact:
        return fields, {"dialect": "openai"} if _DIALECTS[url] == "openai" else None
    call = call_of(_DIALECTS[url], body, "body", spoken)
    fields["agent"] = agent_of_call(call)
    return fields, call


def _response_messages(body: Mapping[str, Any], exact: bool) -> list[dict[str, str]]:
    said, told = body.get("input"), body.get("instructions")
    if isinstance(said, str):
        messages = [{"role": "user", "content": said}]
    else:
        messages = messages_of(said, "body.input", roles=_ROLES, exact=exact)
    if told and (text := text_of(told, "'body.instructions'", exact=exact)):
        messages.insert(0, {"role": "system", "content": text})
    return messages
