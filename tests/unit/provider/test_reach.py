"""Whether a provider answers and takes the key."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentq.provider.reach import Reach, reachable
from tests.support.rawserver import Line, raw_server
from tests.support.smallmodel import Small

SECRET = "sk-secret-0123456789"
URL = "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_API_KEY", SECRET)
    monkeypatch.delenv("SMALL_API_KEY_FILE", raising=False)
    monkeypatch.delenv("http_proxy", raising=False)


def asked(status: int, body: Any = None, *, dialect: type[Small] = Small, **options: Any) -> Reach:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, json=body))
    return reachable(dialect("m", transport=transport, **({"base_url": URL} | options)))


def test_a_list_of_models_is_asked_for_with_the_key_and_nothing_else() -> None:
    seen: list[httpx.Request] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": []})

    class Versioned(Small):
        path = "/v1/messages"

    for dialect in (Small, Versioned):
        reachable(dialect("m", base_url="http://localhost:8000", transport=httpx.MockTransport(note)))
    assert [(request.method, request.url.path) for request in seen] == [
        ("GET", "/models"),
        ("GET", "/v1/models"),
    ]
    assert all(request.content == b"" and request.headers["x-api-key"] == SECRET for request in seen)


def test_a_provider_that_answers_is_well_and_says_where_its_key_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert asked(200, {"data": []}) == Reach(True, f"key from SMALL_API_KEY, {URL} answers")
    path = tmp_path / "key"
    path.write_text("k")
    assert asked(200, api_key_file=str(path)).found.startswith(f"key from {path}, ")
    monkeypatch.delenv("SMALL_API_KEY")
    assert asked(200).found == f"no key, {URL} answers"
    monkeypatch.setenv("SMALL_API_KEY_FILE", str(path))
    assert asked(200).found.startswith("key from SMALL_API_KEY_FILE, ")


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_a_list_of_models_is_well(status: int) -> None:
    reach = asked(status, {"detail": "Not Found"})
    assert reach.ok
    assert "the key was not tried" in reach.found


def test_a_server_that_turns_requests_away_for_now_is_well() -> None:
    assert asked(429, {"error": {"message": "slow down"}}).ok


@pytest.mark.parametrize(
    "status, body, said",
    [
        (
            401,
            {"error": {"message": f"wrong key {SECRET}"}},
            "the key was refused (401): wrong key [the key]",
        ),
        (403, None, "the key was refused (403)"),
        (402, {"error": {"message": "pay"}}, "the account has no quota (402): pay"),
        (200, {"error": {"message": "pay", "code": 402}}, "the account has no quota (402): pay"),
    ],
)
def test_a_refused_key_or_an_empty_account_is_to_be_mended(status: int, body: Any, said: str) -> None:
    reach = asked(status, body)
    assert not reach.ok
    assert reach.refused
    assert said in reach.found
    assert "SMALL_API_KEY" in reach.fix
    assert SECRET not in f"{reach}"


def test_a_missing_key_is_to_be_mended_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALL_API_KEY")
    reach = asked(200, base_url="https://api.openai.com/v1")
    assert (reach.ok, reach.refused) == (False, True)
    assert "SMALL_API_KEY is not set" in reach.found


def test_a_key_file_that_is_not_there_is_to_be_mended() -> None:
    reach = asked(200, api_key_file="/nowhere/key")
    assert (reach.ok, reach.refused) == (False, True)
    assert "/nowhere/key cannot be read" in reach.found


@pytest.mark.parametrize("status", [400, 500, 503, 529])
def test_a_provider_that_fails_is_to_be_mended_but_refuses_no_key(status: int) -> None:
    reach = asked(status, {"error": {"message": "broken"}})
    assert (reach.ok, reach.refused) == (False, False)
    assert reach.found == "broken"
    assert URL in reach.fix


def test_an_address_where_nobody_is_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reach = reachable(Small("m", base_url=f"http://127.0.0.1:{port}"))
    assert (reach.ok, reach.refused) == (False, False)
    assert f"cannot reach http://127.0.0.1:{port}" in reach.found


def test_a_server_that_says_nothing_is_left_in_time() -> None:
    def silent(line: Line) -> None:
        line.over.wait()

    with raw_server(silent) as server:
        reach = reachable(Small("m", base_url=server.url), seconds=0.3)
    assert not reach.ok
    assert "no answer within 0.3 s" in reach.found
