"""Whatever a thread went through, a provider accepts what is sent of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.history import (
    LOST,
    CallIds,
    Entry,
    Outcome,
    arguments_text,
    history,
    json_object,
    unwrapped,
)
from agentq.provider.types import Message, Role, ToolCall, Turn

BY = "d:m"
POLICIES: tuple[CallIds, ...] = ("any", "40", "mistral")
FITS = {"any": r"[A-Za-z0-9_-]{1,64}", "40": r"[A-Za-z0-9_-]{1,40}", "mistral": r"[A-Za-z0-9]{9}"}


def calls_in(body: Any) -> Sequence[tuple[str, str]]:
    return [(call_id, name) for call_id, name in body]


def sent(*messages: Message, ids: CallIds = "any", by: str = BY) -> list[Entry]:
    return history(messages, by=by, calls_in=calls_in, ids=ids)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def asks(*ids: str, text: str = "", turn: Turn | None = None, arguments: str = "{}") -> Message:
    calls = tuple(ToolCall(call_id, "look", arguments) for call_id in ids)
    return Message(Role.ASSISTANT, text, calls, turn=turn)


def result(call_id: str, content: str, **more: Any) -> Message:
    envelope = {"tool_call_id": call_id, "tool": "look", "ok": True, "error_code": None, "content": content}
    return Message(Role.TOOL, json.dumps(envelope | more), tool_call_id=call_id)


def own(*ids: str) -> Turn:
    return Turn(BY, [[call_id, "look"] for call_id in ids])


def outcomes(entry: Entry) -> list[tuple[str, bool]]:
    return [(outcome.content, outcome.ok) for outcome in entry.outcomes]


def test_each_call_has_its_result_whatever_their_order() -> None:
    entries = sent(user("go"), asks("a", "b"), result("b", "2"), result("a", "1"))
    assert [entry.role for entry in entries] == ["user", "assistant"]
    assert entries[1].outcomes == (Outcome("a", "look", "1"), Outcome("b", "look", "2"))


def test_a_call_without_a_result_has_one_that_says_so() -> None:
    entries = sent(user("go"), asks("a", "b"), result("a", "1"), user("well?"))
    assert outcomes(entries[1]) == [("1", True), (LOST, False)]
    assert entries[2] == Entry("user", "well?")


def test_a_result_that_comes_after_a_word_of_the_user_is_put_after_its_call() -> None:
    entries = sent(asks("a"), user("hurry"), result("a", "1"))
    assert outcomes(entries[0]) == [("1", True)]
    assert entries[1] == Entry("user", "hurry")


def test_a_result_after_the_next_turn_is_lost_and_one_that_nobody_asked_for_is_left_out() -> None:
    entries = sent(result("z", "stray"), asks("a"), Message(Role.ASSISTANT, "so"), result("a", "late"))
    assert outcomes(entries[0]) == [(LOST, False)]
    assert [entry.text for entry in entries] == ["", "so"]


def test_empty_messages_are_left_out() -> None:
    assert sent(user(""), Message(Role.ASSISTANT, ""), Message(Role.SYSTEM, "rules")) == [
        Entry("system", "rules")
    ]


def test_an_id_that_is_there_twice_becomes_two_and_each_keeps_its_result() -> None:
    entries = sent(asks("x", "x"), result("x", "1"), result("x", "2"), asks("x"), result("x", "3"))
    ids = [call.id for entry in entries for call in entry.calls]
    assert len(set(ids)) == 3
    assert ids[0] == "x"
    assert [outcomes(entry) for entry in entries] == [[("1", True), ("2", True)], [("3", True)]]


def test_empty_ids_are_told_apart_by_their_order() -> None:
    entries = sent(asks("", ""), result("", "1"), result("", "2"))
    assert outcomes(entries[0]) == [("1", True), ("2", True)]
    assert all(re.fullmatch(FITS["any"], call.id) for call in entries[0].calls)


def test_a_turn_of_its_own_is_sent_as_it_is() -> None:
    turn = own("a")
    (entry,) = sent(asks("a", text="hm", turn=turn), result("a", "1"))
    assert entry.turn is turn
    assert entry.outcomes == (Outcome("a", "look", "1"),)


def test_a_turn_of_another_model_goes_without_its_own_form() -> None:
    (entry,) = sent(asks("a", text="hm", turn=own("a")), result("a", "1"), by="d:other")
    assert entry.turn is None
    assert (entry.text, entry.calls[0].id) == ("hm", "a")


def test_a_turn_that_repeats_ids_goes_without_its_own_form() -> None:
    entries = sent(asks("a", turn=own("a")), result("a", "1"), asks("a", turn=own("a")), result("a", "2"))
    assert entries[0].turn is not None
    assert entries[1].turn is None
    assert [outcomes(entry) for entry in entries] == [[("1", True)], [("2", True)]]
    assert sent(asks("a", "a", turn=own("a", "a")))[0].turn is None
    assert sent(asks("", turn=own("")))[0].turn is None


def test_an_id_that_a_later_turn_has_in_its_own_form_is_left_to_it() -> None:
    entries = sent(asks("a"), result("a", "1"), asks("a", turn=own("a")), result("a", "2"))
    assert entries[1].turn is not None
    assert entries[1].calls[0].id == "a"
    assert entries[0].calls[0].id != "a"


def test_the_thread_may_have_other_ids_than_the_turn() -> None:
    message = Message(
        Role.ASSISTANT, "", (ToolCall("k1", "look", ""), ToolCall("k2", "look", "")), turn=own("a", "b")
    )
    (entry,) = sent(message, result("k2", "2"), result("k1", "1"))
    assert [(o.call_id, o.content) for o in entry.outcomes] == [("a", "1"), ("b", "2")]


def test_a_turn_with_more_calls_than_were_taken_is_matched_by_ids() -> None:
    message = Message(Role.ASSISTANT, "", (ToolCall("b", "look", ""),), turn=own("a", "b"))
    (entry,) = sent(message, result("b", "2"))
    assert [(o.call_id, o.content) for o in entry.outcomes] == [("a", LOST), ("b", "2")]


@pytest.mark.parametrize("name", ["foo.bar", "", "ünï code", "x" * 200, "functions.look:0"])
def test_a_name_that_a_model_invented_is_one_that_providers_take_back(name: str) -> None:
    (entry,) = sent(Message(Role.ASSISTANT, "", (ToolCall("a", name, "{}"),)))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", entry.calls[0].name)
    assert entry.outcomes[0].name == entry.calls[0].name


@pytest.mark.parametrize(
    "text, sent_as",
    [
        ("", "{}"),
        (" \n", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', "{}"),
        ("[1]", "{}"),
        ('"x"', "{}"),
        ("null", "{}"),
        ('{"a": NaN}', "{}"),
        ('{"a": Infinity}', "{}"),
        ("[" * 100_000, "{}"),
        ('{"a": ' + "9" * 5_000 + "}", "{}"),
    ],
    ids=str,
)
def test_arguments_are_sent_as_an_object_of_json(text: str, sent_as: str) -> None:
    assert json_object(text) == sent_as


def test_arguments_come_as_text_an_object_or_nothing() -> None:
    assert [arguments_text(value) for value in (None, "", "{", {"ä": 1})] == ["", "", "{", '{"ä": 1}']


@pytest.mark.parametrize(
    "content, text, ok",
    [
        ("plain", "plain", True),
        ("[" * 100_000, "[" * 100_000, True),
        ('{"ok": false}', '{"ok": false}', True),
        (result("a", "x").content, "x", True),
        (result("a", "x", ok=False, error_code="timeout").content, "timeout: x", False),
    ],
    ids=["text", "deep", "other JSON", "good", "bad"],
)
def test_a_result_is_taken_out_of_its_envelope(content: str, text: str, ok: bool) -> None:
    assert unwrapped(content) == (text, ok)


def test_a_result_out_of_the_cache_says_so() -> None:
    text, ok = unwrapped(result("a", "x", cached=True).content)
    assert ok
    assert text.endswith("x")
    assert "not made again" in text


IDS = st.sampled_from(["a", "b", "call_1", "", "x" * 64, "y" * 65, "mistral09", "ü", "a b"]) | st.text(
    max_size=5
)
TURNS = st.none() | st.builds(
    Turn, st.sampled_from([BY, "d:other"]), st.lists(st.tuples(IDS, st.just("look")), max_size=3)
)
MESSAGES = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(list(Role)),
        content=st.text(max_size=5) | st.just("x"),
        tool_calls=st.lists(
            st.builds(ToolCall, IDS, st.text(max_size=5), st.sampled_from(["", "{}", "{", "[]"])), max_size=3
        ).map(tuple),
        tool_call_id=st.none() | IDS,
        turn=TURNS,
    ),
    max_size=12,
)


def replayed(entries: Sequence[Entry]) -> list[Message]:
    """The entries as a thread again."""
    messages = []
    for entry in entries:
        messages.append(Message(Role(entry.role), entry.text, entry.calls, turn=entry.turn))
        messages += [
            Message(Role.TOOL, outcome.content, tool_call_id=outcome.call_id) for outcome in entry.outcomes
        ]
    return messages


@given(messages=MESSAGES, ids=st.sampled_from(POLICIES))
def test_any_thread_becomes_one_that_every_provider_accepts(
    messages: list[Message], ids: Literal["any", "40", "mistral"]
) -> None:
    entries = sent(*messages, ids=ids)
    assert entries == sent(*messages, ids=ids)
    seen: set[str] = set()
    for entry in entries:
        assert [outcome.call_id for outcome in entry.outcomes] == [call.id for call in entry.calls]
        assert entry.text or entry.calls or entry.turn
        for call in entry.calls:
            assert call.id not in seen
            seen.add(call.id)
            assert isinstance(json.loads(call.arguments), dict)
            if entry.turn is None:
                assert re.fullmatch(FITS[ids], call.id)
    again = sent(*replayed(entries), ids=ids)
    assert [(e.role, e.text, e.calls, e.turn) for e in again] == [
        (e.role, e.text, e.calls, e.turn) for e in entries
    ]
    assert [[o.content for o in e.outcomes] for e in again] == [
        [o.content for o in e.outcomes] for e in entries
    ]


@given(messages=MESSAGES)
def test_a_longer_thread_begins_with_what_was_sent_before(messages: list[Message]) -> None:
    # What providers keep in their caches is the beginning; a new user's word changes none of it.
    entries = sent(*messages)
    assert sent(*messages, user("more"))[: len(entries)] == entries
