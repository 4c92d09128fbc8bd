"""Messages in the forms of providers: text parts are joined, what is no text is refused in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentq.engine.rows import kind_of

_TEXT = frozenset({"text", "input_text", "output_text"})
_KINDS = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "input_audio": "audio",
    "video_url": "a video",
    "file": "a file",
    "input_file": "a file",
    "document": "a document",
    "search_result": "a search result",
    "tool_use": "a call of a tool",
    "tool_result": "a tool's result",
    "function_call": "a call of a tool",
    "function_call_output": "a tool's result",
    "reasoning": "a model's reasoning",
    "thinking": "a model's reasoning",
    "refusal": "a refusal",
}
_CALLS = ("tool_calls", "function_call", "audio", "refusal")
# Of a message or part that is text: what changes nothing that the model reads.
_UNREAD = frozenset({"type", "id", "status", "cache_control", "phase"})


def messages_of(value: Any, where: str, *, roles: Mapping[str, str], exact: bool) -> list[dict[str, str]]:
    """A list of messages as a row has them.

    Args:
        value: the messages as they came.
        where: what they are called there.
        roles: the roles that may be, and what each of them is here.
        exact: refuse what would not be sent on, because the line is to be run as it is.

    Raises:
        ValueError: for what is no message of text.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where!r} is a list of messages, not {_empty_or_kind(value)}")
    return [_message(item, f"message {i} of {where!r}", roles, exact) for i, item in enumerate(value, 1)]


def text_of(value: Any, where: str, *, exact: bool) -> str:
    """The text of a content: a string, or parts of text, joined by an empty line.

    Raises:
        ValueError: when it is not, or not only, text.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} is a string or a list of parts, not {_empty_or_kind(value)}")
    texts: list[str] = []
    for number, part in enumerate(value, start=1):
        if not isinstance(part, Mapping):
            raise ValueError(f"part {number} of {where} is an object, not {kind_of(part)}")
        kind, text = part.get("type"), part.get("text")
        if not isinstance(kind, str) or kind not in _TEXT:
            raise ValueError(f"part {number} of {where} is {_named(kind)}; only text can be sent")
        if not isinstance(text, str):
            raise ValueError(f"the 'text' of part {number} of {where} is a string, not {kind_of(text)}")
        if exact:
            _refuse_unsent(part, ("text",), f"part {number} of {where}")
        texts.append(text)
    return "\n\n".join(texts)


def as_input(messages: list[dict[str, str]]) -> str | list[dict[str, str]]:
    """The input of a row: one message of the user is its text, as somebody would have written it."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return messages


def _message(value: Any, where: str, roles: Mapping[str, str], exact: bool) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is an object, not {kind_of(value)}")
    kind = value.get("type")
    if kind is not None and kind != "message":
        raise ValueError(f"{where} is {_named(kind)}; only text can be sent")
    role = value.get("role")
    if role in ("tool", "function"):
        raise ValueError(f"{where} is a tool's result; only text can be sent")
    if not isinstance(role, str) or role not in roles:
        raise ValueError(f"{where} has the role {role!r}; it is one of {', '.join(roles)}")
    for key in _CALLS:
        if value.get(key):
            what = "an answer in audio" if key == "audio" else _KINDS.get(key, "a call of a tool")
            raise ValueError(f"{where} has {what} ({key}); only text can be sent")
    if exact:
        _refuse_unsent(value, ("role", "content"), where)
    return {
        "role": roles[role],
        "content": text_of(value.get("content"), f"the content of {where}", exact=exact),
    }


def _refuse_unsent(value: Mapping[str, Any], sent: Collection[str], where: str) -> None:
    for key, said in value.items():
        if said and key not in sent and key not in _UNREAD:
            raise ValueError(
                f"{where} has {key!r}, which cannot be sent on: leave it out, "
                "or name --agent, which takes the text alone"
            )


def _named(kind: Any) -> str:
    if kind is None:
        return "of no type"
    return f"{_KINDS[kind]} ({kind})" if isinstance(kind, str) and kind in _KINDS else f"of the type {kind!r}"


def _empty_or_kind(value: Any) -> str:
    return "an empty one" if value == [] else kind_of(value)
