"""What an error body says, in whichever of the shapes that providers write it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentq.provider.waits import duration_s

MESSAGE_CHARS = 400
"""The most of a provider's message that an error shows."""
_TEXT_CHARS = 4_000
"""The most of it that is looked at: Gemini writes the wait at the end of a long one."""
_DETAILS_MAX = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an error body says, whatever its shape.

    `codes` are all its codes and types, in lower case. `status` is the one that the body names, where it
    stands in for the real one (OpenRouter, in a 200). `wait_s` is a wait that is named in a field of it.
    """

    text: str
    codes: frozenset[str] = frozenset()
    status: int | None = None
    wait_s: float | None = None

    @property
    def message(self) -> str:
        """For people, of a bounded length."""
        return self.text[:MESSAGE_CHARS]


def refusal_in(data: Any) -> Refusal | None:
    """The error that a body of JSON carries, or None when it carries none."""
    body = _body(data)
    error = body.get("error")
    if error is None and (body.get("type") == "error" or body.get("object") == "error"):
        error = body  # Mistral, and vLLM of old
    if not error:
        return None
    beside = [body.get("code"), body.get("type")]
    if not isinstance(error, Mapping):
        return Refusal(_text(error), _codes(beside))  # xAI, Ollama
    details = list(_details(error.get("details")))
    code = error.get("code")
    named = [code, error.get("type"), error.get("status"), *beside]
    for detail in details:
        named += [detail.get("error_code"), detail.get("reason")]
        named += ["daily_quota"] if _is_daily(detail) else []
    message = _text(error.get("message") or error.get("type") or code or "no reason given")
    raw = _details(error.get("metadata"))
    for text in (_text(meta.get("raw")) for meta in raw if isinstance(meta.get("raw"), str)):
        message = message if text in message else f"{message}: {text}"
    waits = [duration_s(str(detail["retryDelay"])) for detail in details if "retryDelay" in detail]
    wait_s = max((wait for wait in waits if wait is not None), default=None)
    return Refusal(message[:_TEXT_CHARS], _codes(named), _status(code), wait_s)


def refusal_of(data: Any, text: str) -> Refusal:
    """The same of a body that is known to be one: any sentence in it is the reason.

    Args:
        data: the body as JSON, or None when it is none or was not read.
        text: the body itself.
    """
    if data is None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
    refusal = refusal_in(data)
    if refusal is not None:
        return refusal
    body = _body(data)
    said = body.get("message") or body.get("detail") or body.get("msg")
    plain = _text(said) if said else _plain(text)
    return Refusal(plain or "no reason given", _codes([body.get("code"), body.get("type")]))


def _body(data: Any) -> Mapping[str, Any]:
    # Gemini puts the object into a list.
    if isinstance(data, list) and data:
        data = data[0]
    return data if isinstance(data, Mapping) else {}


def _details(value: Any) -> Iterator[Mapping[str, Any]]:
    for detail in value[:_DETAILS_MAX] if isinstance(value, list) else [value]:
        if isinstance(detail, Mapping):
            yield detail


def _is_daily(detail: Mapping[str, Any]) -> bool:
    return any("PerDay" in str(violation.get("quotaId")) for violation in _details(detail.get("violations")))


def _codes(named: list[Any]) -> frozenset[str]:
    return frozenset(
        str(name).lower() for name in named if isinstance(name, str | int) and name and not _status(name)
    )


def _status(code: Any) -> int | None:
    if isinstance(code, str) and re.fullmatch(r"[1-5][0-9][0-9]", code):
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 100 <= code <= 599 else None


def _text(value: Any) -> str:
    return str(value)[:_TEXT_CHARS]


def _plain(text: str) -> str:
    """The words of a page of HTML, or of any text."""
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", text[: 4 * _TEXT_CHARS])
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())[:200]
