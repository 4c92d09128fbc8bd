from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from agentq.testing import FakeProvider

PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
HEADERS = {"authorization": "Bearer sk-of-a-test-0123456789", "anthropic-version": "2023-06-01"}
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
Ask = Callable[..., httpx.Response]


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as provider:
        yield provider


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=10) as client:
        yield client


@pytest.fixture
def ask(provider, http) -> Ask:
    """Send one request of a dialect: a user's `hello`, or what is given over it."""

    def send(
        dialect: str, *, headers: Mapping[str, str] = HEADERS, raw: bytes | None = None, **body: Any
    ) -> httpx.Response:
        url = f"{provider.url}/{PATHS[dialect]}"
        if raw is not None:
            return http.post(url, content=raw, headers=headers)
        whole = {name: value for name, value in {**hello(dialect), **body}.items() if value is not ...}
        return http.post(url, json=whole, headers=headers)

    return send


def hello(dialect: str) -> dict[str, Any]:
    said = [{"role": "user", "content": "hello"}]
    match dialect:
        case "chat":
            return {"model": "m", "messages": said}
        case "responses":
            return {"model": "m", "input": said}
    return {"model": "m", "messages": said, "max_tokens": 2_000}


def tools(dialect: str) -> list[dict[str, Any]]:
    match dialect:
        case "chat":
            return [{"type": "function", "function": {"name": "get_order", "parameters": SCHEMA}}]
        case "responses":
            return [{"type": "function", "name": "get_order", "parameters": SCHEMA}]
    return [{"name": "get_order", "input_schema": SCHEMA}]


def text(dialect: str, reply: httpx.Response) -> str:
    """What the model said."""
    assert reply.status_code == 200, reply.text
    data = reply.json()
    match dialect:
        case "chat":
            return str(data["choices"][0]["message"]["content"])
        case "responses":
            return "".join(part["text"] for item in data["output"] for part in item.get("content", ()))
    return "".join(block["text"] for block in data["content"] if block["type"] == "text")


def calls(dialect: str, reply: httpx.Response) -> list[tuple[str, str, Any]]:
    """The calls as (id, name, arguments)."""
    assert reply.status_code == 200, reply.text
    data = reply.json()
    match dialect:
        case "chat":
            found = data["choices"][0]["message"].get("tool_calls") or ()
            return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in found]
        case "responses":
            found = [item for item in data["output"] if item["type"] == "function_call"]
            return [(call["call_id"], call["name"], call["arguments"]) for call in found]
    found = [block for block in data["content"] if block["type"] == "tool_use"]
    return [(call["id"], call["name"], call["input"]) for call in found]
