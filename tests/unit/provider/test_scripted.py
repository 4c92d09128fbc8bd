"""A script is played by the thread's position, so that any worker gives the same reply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentq.provider.client import Bounded, LLMClient
from agentq.provider.errors import InvalidRequest
from agentq.provider.scripted import ScriptedClient, ScriptedModel, Turn
from agentq.provider.types import ChatRequest, Message, Role, Usage

SCRIPT: list[Turn] = [[("look", '{"a":1}'), ("look", "{}")], "done"]


def request(turns: int, **options: object) -> ChatRequest:
    messages = [Message(Role.USER, "go")] + [Message(Role.ASSISTANT, "t")] * turns
    return ChatRequest(messages, **options)  # type: ignore[arg-type]


def test_the_turn_comes_from_the_thread_and_the_last_repeats() -> None:
    """Two objects give the same reply to the same request, in any order."""
    first, second = ScriptedClient(SCRIPT), ScriptedClient(SCRIPT)
    assert first.complete(request(1)).text == "done"
    assert second.complete(request(0)) == first.complete(request(0))
    assert [call.id for call in first.complete(request(0)).tool_calls] == ["call_0_0", "call_0_1"]
    assert first.complete(request(9)).text == "done"


def test_a_client_is_a_bounded_client_that_keeps_what_it_was_sent() -> None:
    """The protocols hold, and a test can look at the requests."""
    client = ScriptedClient(["a"], usage=Usage(1, 2))
    sent = request(0)
    assert isinstance(client, LLMClient)
    assert isinstance(client, Bounded)
    assert client.bound(sent) == client.complete(sent).usage == Usage(1, 2)
    assert client.requests == [sent]
    assert client.call_count == 1


def test_the_script_may_be_in_the_rows_metadata() -> None:
    """As JSON gives it: lists instead of tuples."""
    script = json.loads(json.dumps(SCRIPT))
    reply = ScriptedClient().complete(request(0, metadata={"script": script}))
    assert [(call.name, call.arguments) for call in reply.tool_calls] == SCRIPT[0]


def test_the_client_plays_word_for_word_and_the_model_behaves() -> None:
    """With tools forbidden only `scripted` turns its calls into text, and always into the same."""
    forbidden = request(0, tool_choice="none", metadata={"script": SCRIPT})
    assert ScriptedClient().complete(forbidden).wants_tools
    model = ScriptedModel()
    reply = model.complete(forbidden)
    assert not reply.wants_tools
    assert 'look({"a":1})' in reply.text
    assert reply == ScriptedModel().complete(forbidden)
    assert model.complete(request(0, metadata={"script": SCRIPT})).wants_tools
    assert (model.call_count, model.requests) == (2, [])


@pytest.mark.parametrize(
    "script", [None, [], "text", [7], [[]], [["look", "{}"]], [[("look",)]], [[("look", {"a": 1})]]]
)
def test_a_script_that_cannot_be_played_is_an_invalid_request(script: object) -> None:
    """It costs nothing and says what a turn looks like."""
    metadata = {} if script is None else {"script": script}
    with pytest.raises(InvalidRequest) as caught:
        ScriptedModel().complete(request(0, metadata=metadata))
    assert caught.value.billed is False


def test_a_script_comes_from_a_file(tmp_path: Path) -> None:
    """A JSON list; anything else is refused with the path."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCRIPT))
    client = ScriptedModel.from_file(path)
    assert isinstance(client, ScriptedModel)
    assert client.complete(request(1)).text == "done"
    path.write_text("{}")
    with pytest.raises(InvalidRequest, match=r"s\.json"):
        ScriptedClient.from_file(path)
    with pytest.raises(InvalidRequest, match=r"none\.json"):
        ScriptedClient.from_file(tmp_path / "none.json")
