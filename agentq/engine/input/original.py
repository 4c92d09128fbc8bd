"""From a run back to the line that it came from, to be submitted again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from agentq.core.records import RunSpec
from agentq.engine.input.content import as_input
from agentq.engine.input.openailine import CHAT_URL, RESPONSES_URL
from agentq.engine.rows import Row


def line_of(spec: RunSpec, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """An input line that has the same content: a native one, or a provider's where it came as one.

    A run does not keep whether its text came as a string or as a list of one message, nor whether its cap is
    the row's or its agent's. The hash of the content tells it.

    Args:
        spec: the run as it was submitted.
        messages: what it started with, as objects of `role` and `content`.

    Returns:
        A JSON object. Where the hash is of none of the forms, as for a run that continues another one, it
        is the plainest one, with the run's cap.
    """
    rows = list(_rows(spec, [dict(message) for message in messages]))
    row = next((row for row in rows if row.content_hash == spec.content_hash), rows[0])
    line: dict[str, Any] = {"custom_id": spec.custom_id} if spec.custom_id else {}
    line |= _request(row) if row.call else {"input": row.input}
    for name in ("metadata", "context") if row.own_call else ("agent", "metadata", "context"):
        if getattr(row, name):
            line[name] = getattr(row, name)
    if row.max_usd is not None:
        line["max_usd"] = f"{row.max_usd:f}"
    if spec.priority:
        line["priority"] = spec.priority
    return line


def _rows(spec: RunSpec, messages: list[dict[str, str]]) -> Iterator[Row]:
    """Every row that may have become this run, the likeliest first."""
    cap = spec.budgets.get("max_usd")
    plain = as_input(messages)
    for said in [plain] if plain is messages or spec.call else [plain, messages]:
        for max_usd in [None] if cap is None else [Decimal(cap), None]:
            yield Row(
                input=said,
                agent=spec.agent,
                metadata=spec.metadata,
                context=spec.context,
                max_usd=max_usd,
                call=spec.call or None,
            )


def _request(row: Row) -> dict[str, Any]:
    """The provider's part of a batch line."""
    call: Mapping[str, Any] = row.call or {}
    messages = row.messages()
    body: dict[str, Any] = {"model": call["model"], **call["options"]} if "model" in call else {}
    match call["dialect"]:
        case "anthropic":
            told = [message["content"] for message in messages if message["role"] == "system"]
            body["messages"] = [message for message in messages if message["role"] != "system"]
            if told:
                body["system"] = "\n\n".join(told)
            return {"params": body}
        case "openai":
            body["input"] = row.input
            return {"method": "POST", "url": RESPONSES_URL, "body": body}
        case _:
            body["messages"] = messages
            return {"method": "POST", "url": CHAT_URL, "body": body}
