"""A model's name becomes a client, or one sentence."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from agentq.core.errors import UsageError
from agentq.provider.resolve import resolve_model
from agentq.provider.scripted import ScriptedClient, ScriptedModel


def test_an_object_is_used_as_it_is() -> None:
    """The factory gives the same object each time."""
    client = ScriptedClient(["x"])
    assert resolve_model(client)() is client


def test_scripted_is_the_model_that_behaves(tmp_path: Path) -> None:
    """With a script from the metadata, or from a file."""
    make = resolve_model("scripted")
    assert isinstance(make(), ScriptedModel)
    assert make() is make()
    path = tmp_path / "s.json"
    path.write_text('["a"]')
    client = resolve_model(f"scripted:{path}")()
    assert isinstance(client, ScriptedModel)
    assert client.script == ["a"]


def test_a_factory_is_imported_now_and_called_once_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per process, when the first client is needed."""
    made: list[ScriptedClient] = []

    def factory() -> ScriptedClient:
        made.append(ScriptedClient(["x"]))
        return made[-1]

    module = types.ModuleType("my_models")
    module.factory = factory  # type: ignore[attr-defined]
    module.broken = lambda: 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_models", module)
    make = resolve_model("my_models:factory")
    assert made == []
    assert make() is make() is made[0]
    assert len(made) == 1
    with pytest.raises(UsageError, match="without complete"):
        resolve_model("my_models:broken")()
    with pytest.raises(UsageError, match="no callable 'absent'"):
        resolve_model("my_models:absent")


@pytest.mark.parametrize(
    "model, says",
    [
        ("openai:", "names no model"),
        ("opnai:gpt-5-mini", "did you mean 'openai'"),
        ("gpt-5-mini", "the providers are"),
        ("scriptd", "did you mean 'scripted'"),
        ("scripted:/no/such.json", "cannot read the script"),
        (7, "a method complete"),
    ],
)
def test_a_name_that_cannot_work_is_refused_in_one_sentence(model: object, says: str) -> None:
    """At the start, with what to write instead."""
    with pytest.raises(UsageError, match=says) as caught:
        resolve_model(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model, dialect",
    [
        ("openai:gpt-5-mini", "openai"),
        ("openai-chat:org/m:free", "openai-chat"),
        ("anthropic:claude-x", "anthropic"),
    ],
)
def test_a_provider_and_an_id_make_its_adapter_without_a_key(model: str, dialect: str) -> None:
    """A producer needs no key; only a call does."""
    client: Any = resolve_model(model, base_url="http://127.0.0.1:9/v1", quirks={"temperature": False})()
    assert (client.dialect, client.model) == (dialect, model.partition(":")[2])
    assert client.quirks.temperature is False
    client.close()


def test_what_is_for_providers_is_refused_for_other_models_and_so_is_a_wrong_address() -> None:
    """In one sentence, at the start."""
    with pytest.raises(UsageError, match="model_options= is for models of a provider"):
        resolve_model("scripted", options={"a": 1})
    with pytest.raises(UsageError, match="no address of a model"):
        resolve_model("openai:gpt-5-mini", base_url="localhost:8000")
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        resolve_model("openai:gpt-5-mini", quirks={"temprature": False})
