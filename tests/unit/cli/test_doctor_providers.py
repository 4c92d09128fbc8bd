"""`agentq doctor` and the models' providers, on real servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.provider.resolve import ADAPTERS
from agentq.store import Store
from agentq.testing.provider import FakeProvider
from tests.support.rawserver import Line, RawServer, raw_server
from tests.unit.cli.fakes import invoke

NAMES = [
    f"{who}_{what}"
    for who in ("OPENAI", "ANTHROPIC", "SMALL")
    for what in ("API_KEY", "API_KEY_FILE", "BASE_URL")
]
APP = """
from agentq import AgentQ
from agentq.provider.resilient import ResilientClient
from agentq.provider.scripted import ScriptedModel
from tests.support.smallmodel import Small

app = AgentQ("{namespace}")
app.agent("one", model=Small("m", base_url="{url}"))
app.agent("two", model=Small("n", base_url="{url}"))
app.agent("script", model="scripted")
app.agent("chain", model=ScriptedModel(), fallbacks=[Small("m", base_url="{url}/other")])
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*NAMES, "http_proxy"]:
        monkeypatch.delenv(name, raising=False)
    # Whose adapter is tried is not what is tested here.
    monkeypatch.setitem(ADAPTERS, "openai", ("tests.support.smallmodel", "Small"))


def takes_one_key(line: Line) -> None:
    while request := line.request():
        if b"x-api-key: right-key" in request.lower():
            line.answer(b'{"data": []}')
        else:
            line.answer(b'{"error": {"message": "no such key"}}', status="401 Unauthorized")


@pytest.fixture
def provider() -> Iterator[RawServer]:
    with raw_server(takes_one_key) as server:
        yield server


def lines(code: int, *args: str) -> list[str]:
    """The lines about providers of `agentq doctor`, which ends with this code."""
    done = invoke("doctor", *args)
    assert done.exit_code == code, (done.stdout, done.stderr)
    found = done.stdout.splitlines()
    first = next((i for i, line in enumerate(found) if "provider " in line), len(found))
    return found[first:]


def test_a_provider_whose_variable_is_set_is_asked(
    store: Store, provider: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(1) == []  # no worker is there to be found, hence 1
    monkeypatch.setenv("OPENAI_BASE_URL", "chosen by the next two, which the small one reads")
    monkeypatch.setenv("SMALL_BASE_URL", provider.url)
    monkeypatch.setenv("SMALL_API_KEY", "right-key")
    assert lines(1) == [f"ok   provider small  key from SMALL_API_KEY, {provider.url} answers"]


def test_a_refused_key_is_8_and_says_where_the_key_is(
    store: Store, provider: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("SMALL_BASE_URL", provider.url)
    monkeypatch.setenv("SMALL_API_KEY", "wrong-key-123")
    assert lines(8) == [
        "fix  provider small  the key was refused (401): no such key",
        f"                     → key from SMALL_API_KEY, {provider.url}: put a valid key there",
    ]


def test_an_unreachable_provider_is_a_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("SMALL_BASE_URL", "http://127.0.0.1:1/v1")
    first, second = lines(1)
    assert first.startswith("fix  provider small  cannot reach http://127.0.0.1:1/v1: ")
    assert "check the address" in second


def test_an_unreachable_server_is_7_before_a_refused_key(
    provider: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTQ_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("SMALL_BASE_URL", provider.url)
    assert len(lines(7)) == 2


def test_an_address_that_is_none_is_one_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "x")
    monkeypatch.setenv("SMALL_BASE_URL", "localhost:8000")
    done = invoke("doctor")
    assert done.exit_code == 2
    assert "OPENAI_BASE_URL: that is no address of a model" in done.stderr


def test_with_an_app_each_account_of_its_agents_and_fallbacks_is_asked_once(
    store: Store, provider: RawServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SMALL_API_KEY", "right-key")
    monkeypatch.setenv("OPENAI_API_KEY", "not asked about: no agent has it")
    app = APP.format(namespace=store.keys.namespace, url=provider.url)
    (tmp_path / "doctored.py").write_text(app)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = json.loads(invoke("doctor", "--json", "-A", "doctored:app").stdout)
    finally:
        sys.modules.pop("doctored", None)
    assert [check["found"] for check in found if check["check"].startswith("provider")] == [
        f"key from SMALL_API_KEY, {provider.url} answers",
        f"key from SMALL_API_KEY, {provider.url}/other answers",
    ]


@pytest.mark.parametrize("key, code, mark", [("right-key", 1, "ok "), ("wrong-key", 8, "fix")])
def test_a_key_is_tried_where_the_model_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, key: str, code: int, mark: str
) -> None:
    monkeypatch.setitem(ADAPTERS, "openai", ADAPTERS["openai-chat"])
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with FakeProvider(keys=["right-key"]) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        first, *_ = lines(code)
        assert first.startswith(f"{mark}  provider openai")
        assert provider.requests == []  # no model was called
