"""A bound holds, or money is overspent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.provider.bounds import (
    FRAMING_TOKENS,
    TOOLS_PREAMBLE_TOKENS,
    Anchor,
    TokenBounds,
    call_bound,
    closing_bound,
    input_bound,
)
from agentq.provider.families import BYTE_BPE, FAMILIES, UNKNOWN, Family, families_of
from agentq.provider.resilient import ResilientClient
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult, Message, Role, ToolCall, Usage


class Plain:
    """A client without a bound of its own."""

    provider = "p"
    model = "m"

    def complete(self, req: ChatRequest) -> ChatResult:
        raise AssertionError("a bound makes no call")


@dataclass
class Own(Plain):
    """A client whose bound is one token for each byte of the messages."""

    asked: list[ChatRequest] = field(default_factory=list)

    def bound(self, req: ChatRequest) -> Usage:
        self.asked.append(req)
        return Usage(sum(len(message.content.encode()) for message in req.messages), req.max_output_tokens)


def test_everything_that_is_sent_counts() -> None:
    """Adding a system text, a tool, a schema, a call or a message raises the bound by its bytes."""
    bare = ChatRequest([Message(Role.USER, "x")])
    least = input_bound(bare)
    longer = [
        (replace(bare, system="s" * 100), 100),
        (replace(bare, tools=[{"name": "t" * 100}]), 100),
        (replace(bare, json_schema={"title": "t" * 100}), 100),
        (replace(bare, messages=[*bare.messages, Message(Role.USER, "é" * 50)]), 100),
        (replace(bare, messages=[Message(Role.USER, "x", tool_calls=(ToolCall("i", "n", "a" * 98),))]), 100),
        (replace(bare, messages=[Message(Role.TOOL, "x", tool_call_id="i" * 100)]), 100),
    ]
    for request, size in longer:
        assert input_bound(request) >= least + 4 * size


@given(st.lists(st.text(max_size=40), min_size=2, max_size=6), st.data())
def test_an_anchor_leaves_only_the_new_messages_to_be_bounded(texts: list[str], data: st.DataObject) -> None:
    """What the provider has counted is taken as counted."""
    request = ChatRequest([Message(Role.USER, text) for text in texts], system="long " * 50)
    covered = data.draw(st.integers(0, len(texts)))
    suffix = sum(4 * len(text.encode()) + 16 for text in texts[covered:])
    assert input_bound(request, Anchor(covered, 7)) == 7 + 16 + suffix


def test_a_clients_own_bound_goes_first() -> None:
    """A scripted call can use exactly its usage."""
    request = ChatRequest([Message(Role.USER, "x" * 1000)])
    assert call_bound(ScriptedClient(["a"]), request, None) == Usage(500, 100)
    assert call_bound(Plain(), request, None) == Usage(input_bound(request), 1024)


def test_a_request_without_an_output_cap_is_refused() -> None:
    """It has no worst case."""
    request = ChatRequest([Message(Role.USER, "x")], max_output_tokens=0)
    with pytest.raises(ValueError, match="output cap"):
        call_bound(Plain(), request, None)
    with pytest.raises(ValueError, match="output cap"):
        closing_bound(Plain(), request, None, output_tokens=1, tool_bytes=1)


@given(st.text(max_size=60), st.lists(st.text(max_size=30), max_size=4), st.integers(60, 400))
def test_the_escrow_covers_every_context_that_the_step_can_leave(
    reply: str, results: list[str], granted: int
) -> None:
    """Whatever the step adds within its caps, the real closing turn's bound is not above the escrow."""
    before = [Message(Role.USER, "task")]
    closing = Message(Role.USER, "close")
    sizes = sum(len(text.encode()) for text in results)
    escrow = closing_bound(
        Plain(),
        ChatRequest([*before, closing]),
        Anchor(1, 50),
        output_tokens=granted,
        tool_bytes=sizes,
        tool_messages=len(results),
    )
    after = [
        *before,
        Message(Role.ASSISTANT, reply),
        *(Message(Role.TOOL, text) for text in results),
        closing,
    ]
    # The step's input was at most the bound that the step itself was reserved with.
    counted = Anchor(2, input_bound(ChatRequest(before), Anchor(1, 50)) + granted)
    assert call_bound(Plain(), ChatRequest(after), counted).total_tokens <= escrow.total_tokens


def test_a_clients_own_bound_is_asked_with_fillers_of_the_size_that_may_come() -> None:
    """One filler token for each granted token, one filler byte for each byte of results."""
    client = Own()
    request = ChatRequest([Message(Role.USER, "abc")])
    bound = closing_bound(client, request, None, output_tokens=10, tool_bytes=101, tool_messages=4)
    assert bound.input_tokens >= 3 + 10 + 101
    assert len(client.asked[0].messages) == 1 + 1 + 4
    assert bound.output_tokens == 1024


@dataclass
class Named(Plain):
    """A client that says of which family its tokenizer is."""

    family: str = "byte-bpe"


@dataclass
class Counting(Named):
    """A client with a tokenizer: one token for every four characters of the messages."""

    def count(self, req: ChatRequest) -> int:
        return sum(-(-len(message.content) // 4) for message in req.messages)


TEXTS = st.text(max_size=60)
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


@pytest.mark.parametrize(
    "text, rates",
    [
        # byte-bpe, sentencepiece, anthropic, unknown
        ("", (0, 0, 0, 0)),
        ("abc", (3, 4, 6, 12)),
        ("é", (2, 3, 8, 8)),
        ("aé漢🙂", (10, 11, 2 + 4 * 9, 40)),
        ("\ud800", (3, 4, 12, 12)),
    ],
)
def test_a_text_is_bounded_by_its_bytes_and_its_family(text: str, rates: tuple[int, ...]) -> None:
    """The rates of the families, ASCII and the rest apart where they differ."""
    assert tuple(family.tokens(text) for family in FAMILIES.values()) == rates


@EACH_FAMILY
@given(TEXTS, TEXTS)
def test_more_text_is_never_bounded_by_less(family: Family, one: str, other: str) -> None:
    """Joined, two texts need at least what each needs alone, and no more than both apart."""
    joined = family.tokens(one + other)
    assert max(family.tokens(one), family.tokens(other)) <= joined
    assert joined <= family.tokens(one) + family.tokens(other)


@EACH_FAMILY
@given(st.lists(TEXTS, max_size=5))
def test_the_worst_of_a_size_is_not_below_any_text_of_that_size(family: Family, texts: list[str]) -> None:
    """What an escrow sets aside for bytes that are not there yet."""
    size = sum(len(text.encode()) for text in texts)
    assert sum(family.tokens(text) for text in texts) <= family.worst(size, len(texts))


@EACH_FAMILY
@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS, st.data())
def test_a_longer_request_is_never_bounded_by_less(
    family: Family, texts: list[str], more: str, data: st.DataObject
) -> None:
    """A message more, or more in a message, with and without an anchor."""
    messages = [Message(Role.USER, text) for text in texts]
    place = data.draw(st.integers(0, len(texts) - 1))
    longer = [*messages]
    longer[place] = Message(Role.USER, texts[place] + more)
    anchor = data.draw(st.none() | st.builds(Anchor, st.integers(0, len(texts)), st.integers(0, 1000)))
    least = input_bound(ChatRequest(messages), anchor, family)
    assert input_bound(ChatRequest(longer), anchor, family) >= least
    assert input_bound(ChatRequest([*messages, Message(Role.TOOL, more)]), anchor, family) >= least + 16


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_family_that_is_named_is_never_above_the_unknown_one(texts: list[str]) -> None:
    """Who says nothing is on the safe side."""
    request = ChatRequest([Message(Role.USER, text) for text in texts], system="s", tools=[{"name": "t"}])
    unknown = call_bound(Plain(), request, None).input_tokens
    for name in FAMILIES:
        assert call_bound(Named(family=name), request, None).input_tokens <= unknown


def test_tools_are_introduced_and_the_first_message_too() -> None:
    """What providers add by themselves is more than what was sent."""
    bare = ChatRequest([Message(Role.USER, "x")])
    assert input_bound(bare, None, BYTE_BPE) == 128 + 16 + 16 + 1
    tool = {"name": "t"}
    assert input_bound(replace(bare, tools=[tool]), None, BYTE_BPE) == 161 + 600 + 16 + len(json.dumps(tool))


@pytest.mark.parametrize(
    "provider, model, family",
    [
        ("openai", "gpt-5", "byte-bpe"),
        ("chat-completions", "gpt-5-mini", "byte-bpe"),
        ("anthropic", "claude-haiku-4-5-20251001", "anthropic"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "anthropic"),
        ("google", "gemini-2.5-pro", "sentencepiece"),
        ("mistral", "mistral-large-latest", "sentencepiece"),
        ("groq", "openai/gpt-oss-120b", "byte-bpe"),
        ("anywhere", "openai/gpt-oss-120b", "byte-bpe"),
        ("x-ai", "grok-4.5", "unknown"),
        ("openai", "my-own-model", "unknown"),
        ("anthropic", "claude-of-tomorrow", "unknown"),
    ],
)
def test_the_family_is_that_of_the_exact_model(provider: str, model: str, family: str) -> None:
    """A provider's name alone says nothing: many speak OpenAI's dialect."""
    client = Plain()
    client.provider, client.model = provider, model
    assert [found.name for found in families_of(client)] == [family]


def test_a_client_may_name_its_family() -> None:
    """It goes before the catalogue; one that does not exist is refused."""
    client = Named(family="sentencepiece")
    client.model = "gpt-5"
    assert families_of(client) == (FAMILIES["sentencepiece"],)
    with pytest.raises(ValueError, match="no tokenizer family 'bpe'; the families are byte-bpe"):
        call_bound(Named(family="bpe"), ChatRequest([Message(Role.USER, "x")]), None)


def test_with_fallbacks_the_bound_is_that_of_the_worst_family() -> None:
    """Any of them may answer."""
    request = ChatRequest([Message(Role.USER, "x" * 100)])
    both = ResilientClient(Named(family="byte-bpe"), [Named(family="anthropic")])
    assert call_bound(both, request, None) == call_bound(Named(family="anthropic"), request, None)
    assert closing_bound(both, request, None, output_tokens=5, tool_bytes=50) == closing_bound(
        Named(family="anthropic"), request, None, output_tokens=5, tool_bytes=50
    )


@pytest.mark.parametrize("size, counted", [(400, 100), (404, 101), (1, 1)])
def test_tight_is_the_clients_count_and_a_tenth_more(size: int, counted: int) -> None:
    """Rounded up; strict takes no notice of it."""
    request = ChatRequest([Message(Role.USER, "x" * size)])
    client = Counting()
    assert call_bound(client, request, None, policy="tight") == Usage(-(-counted * 11 // 10), 1024)
    assert call_bound(client, request, None) == Usage(128 + 16 + 16 + size, 1024)


def test_tight_is_never_above_strict() -> None:
    """The anchor knows better than a count of everything."""
    request = ChatRequest([Message(Role.USER, "x" * 4000), Message(Role.USER, "y")])
    anchor = Anchor(1, 10)
    strict = call_bound(Counting(), request, anchor)
    assert strict.input_tokens == 10 + 16 + 16 + 1
    assert call_bound(Counting(), request, anchor, policy="tight") == strict


def test_without_a_count_tight_is_strict() -> None:
    """There is nothing to be tight by; less would be a guess."""
    request = ChatRequest([Message(Role.USER, "x" * 400)])
    for bound in (
        lambda policy: call_bound(Named(), request, None, policy=policy),
        lambda policy: closing_bound(Named(), request, None, output_tokens=1, tool_bytes=1, policy=policy),
    ):
        assert bound("tight") == bound("strict")


def test_what_is_not_there_yet_cannot_be_counted() -> None:
    """Under either policy the escrow has room for the coming step by its bytes."""
    request = ChatRequest([Message(Role.USER, "x" * 400)])

    def grown(policy: TokenBounds) -> int:
        closing = closing_bound(
            Counting(), request, None, output_tokens=100, tool_bytes=1000, tool_messages=3, policy=policy
        )
        return closing.input_tokens - call_bound(Counting(), request, None, policy=policy).input_tokens

    assert grown("tight") == grown("strict") == 100 + 1000 + 16 * 4


@EACH_FAMILY
@given(TEXTS, st.lists(TEXTS, max_size=4), st.integers(0, 400))
def test_in_every_family_the_escrow_covers_what_the_step_can_leave(
    family: Family, reply: str, results: list[str], granted: int
) -> None:
    """The general case of the test above: the ids of the calls count as bytes of the tool messages."""
    client = Named(family=family.name)
    closing = Message(Role.USER, "close")
    sizes = sum(len(text.encode()) + 1 for text in results)
    escrow = closing_bound(
        client,
        ChatRequest([Message(Role.USER, "task"), closing]),
        Anchor(1, 50),
        output_tokens=granted,
        tool_bytes=sizes,
        tool_messages=len(results),
    )
    after = [
        Message(Role.USER, "task"),
        Message(Role.ASSISTANT, reply),
        *(Message(Role.TOOL, text, tool_call_id="i") for text in results),
        closing,
    ]
    counted = Anchor(2, input_bound(ChatRequest(after[:1]), Anchor(1, 50), family) + granted)
    assert call_bound(client, ChatRequest(after), counted).total_tokens <= escrow.total_tokens


def test_tools_that_are_forbidden_may_be_declared_all_the_same_and_are_bounded() -> None:
    called = Message(Role.ASSISTANT, "", (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")))
    result = Message(Role.TOOL, "seen", tool_call_id="c1")
    without = input_bound(ChatRequest([Message(Role.ASSISTANT, ""), result], tool_choice="none"))
    texts = sum(UNKNOWN.tokens(text) for call in called.tool_calls for text in (call.id, call.name, "{}"))
    declared = TOOLS_PREAMBLE_TOKENS + FRAMING_TOKENS
    assert input_bound(ChatRequest([called, result], tool_choice="none")) == without + texts + declared
