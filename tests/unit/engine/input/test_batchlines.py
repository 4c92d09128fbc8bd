"""Batch lines of providers: run as they are, or as an agent's rows."""

from __future__ import annotations

from typing import Any

import pytest

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
HI = [{"role": "user", "content": "Hi"}]


def openai(body: dict[str, Any], url: str = CHAT, **more: Any) -> dict[str, Any]:
    return {"custom_id": "t-1", "method": "POST", "url": url, "body": {"model": "gpt-5-mini", **body}, **more}


def anthropic(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"custom_id": "t-1", "params": {"model": "claude-haiku-4-5", "max_tokens": 50, **params}, **more}


@pytest.fixture
def read(source):
    def read(line: dict[str, Any], **options: Any) -> Any:
        source.write_lines(line)
        ((_, found),) = source.found(**options)
        return found

    return read


def test_a_chat_line_is_one_call_of_its_own_model(read):
    talk = [{"role": "developer", "content": "Be brief."}, *HI]
    body = {"messages": talk, "temperature": 0.5, "max_tokens": 9, "response_format": {"type": "json_object"}}
    row = read(openai(body))
    assert (row.custom_id, row.agent) == ("t-1", "openai-chat:gpt-5-mini")
    assert row.input == [{"role": "system", "content": "Be brief."}, *HI]
    assert row.call == {
        "dialect": "openai-chat",
        "model": "gpt-5-mini",
        "options": {"temperature": 0.5, "max_tokens": 9, "response_format": {"type": "json_object"}},
    }


@pytest.mark.parametrize(
    "said, messages",
    [
        ({"input": "Hi"}, HI),
        ({"input": HI}, HI),
        (
            {
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
                ]
            },
            HI,
        ),
        ({"input": "Hi", "instructions": "Be brief."}, [{"role": "system", "content": "Be brief."}, *HI]),
        ({"input": "Hi", "instructions": None}, HI),
    ],
)
def test_a_responses_line_is_one_call_of_its_own_model(read, said, messages):
    row = read(openai({**said, "max_output_tokens": 9}, RESPONSES))
    assert row.agent == "openai:gpt-5-mini"
    assert row.messages() == messages
    assert row.call == {"dialect": "openai", "model": "gpt-5-mini", "options": {"max_output_tokens": 9}}


@pytest.mark.parametrize(
    "system", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]]
)
def test_an_anthropic_line_is_one_call_of_its_own_model(read, system):
    row = read(anthropic({"messages": HI, "system": system, "top_k": 5}))
    assert row.agent == "anthropic:claude-haiku-4-5"
    assert row.messages() == [{"role": "system", "content": "Be brief."}, *HI]
    assert row.call == {
        "dialect": "anthropic",
        "model": "claude-haiku-4-5",
        "options": {"max_tokens": 50, "top_k": 5},
    }


def test_one_message_of_the_user_is_its_text(read):
    assert read(openai({"messages": HI})).input == "Hi"


def test_parts_of_text_are_joined(read):
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    assert read(openai({"messages": [{"role": "user", "content": parts}]})).input == "One.\n\nTwo."


def test_the_model_and_each_option_are_content(read):
    lines = [
        openai({"messages": HI}),
        openai({"messages": HI, "model": "x"}),
        openai({"messages": HI, "seed": 1}),
    ]
    assert len({read(line).content_hash for line in lines}) == 3


def test_a_stream_and_empty_tools_are_dropped(read):
    more = {"stream": True, "stream_options": {"include_usage": True}, "tools": [], "functions": None, "n": 1}
    assert read(openai({"messages": HI, **more})).call["options"] == {"n": 1}


@pytest.mark.parametrize("url", ["/chat/completions", "/responses"])
def test_azure_s_addresses_are_known(read, url):
    assert read(openai({"messages": HI, "input": "Hi"}, url)).input == "Hi"


def test_a_line_may_have_fields_of_a_row(read):
    row = read(openai({"messages": HI}, priority=7, metadata={"a": 1}, max_usd="0.1"))
    assert (row.priority, row.metadata, str(row.max_usd)) == (7, {"a": 1}, "0.1")
    assert row.call is not None
    assert read({k: v for k, v in openai({"messages": HI}).items() if k != "custom_id"}).derived_id


@pytest.mark.parametrize("line", [openai, anthropic])
def test_with_an_agent_the_messages_alone_are_taken(read, line):
    odd = [{"role": "user", "content": "Hi", "name": "mira"}]
    body = {"messages": odd, "tools": [{"type": "function"}], "n": 3, "model": 7, "what": "ever"}
    row = read(line(body), agent="orders")
    spoken = {"dialect": "anthropic"} if line is anthropic else None  # in which its answer is written
    assert (row.agent, row.input, row.call, row.own_call) == ("orders", "Hi", spoken, None)
    assert read(line(body, agent="triage"), agent="orders").agent == "triage"
    assert read(line(body, agent="triage")).agent == "triage"


def test_with_an_agent_system_messages_stay(read):
    row = read(anthropic({"messages": HI, "system": "Be brief."}), agent="orders")
    assert row.messages()[0] == {"role": "system", "content": "Be brief."}


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    "line, sentence",
    [
        (openai({"messages": HI}, "/v1/embeddings"), f"'url' is {CHAT} or {RESPONSES}, not '/v1/embeddings'"),
        ({**openai({}), "url": ["x"]}, f"'url' is {CHAT}"),
        ({**openai({}), "method": "GET"}, "'method' is \"POST\", not 'GET'"),
        (openai({"messages": HI}, custum_id="x"), "did you mean 'custom_id'"),
        ({**openai({}), "body": "x"}, "'body' is an object, not a string"),
        ({"custom_id": "t-1", "url": CHAT, "body": {}}, "the line has no 'method'"),
        ({"custom_id": "t-1", "method": "POST", "url": CHAT}, "no 'body'; such a line has custom_id, method"),
        ({**openai({"messages": HI}), "custom_id": 7}, "'custom_id' is a string"),
        (openai({}), "'body.messages' is a list of messages, not null"),
        (openai({"messages": []}), "not an empty one"),
        (openai({"messages": ["x"]}), "message 1 of 'body.messages' is an object, not a string"),
        (openai({"messages": [{"role": "tool", "content": "x"}]}), "is a tool's result"),
        (
            openai({"messages": [{"role": "robot", "content": "x"}]}),
            "has the role 'robot'; it is one of system",
        ),
        (openai({"messages": [{"role": "system", "content": "x"}]}), "without a message of the user"),
        (openai({"messages": [{"role": "user", "content": None}]}), "a string or a list of parts, not null"),
        (openai({"messages": [{"role": "user", "content": [IMAGE]}]}), "is an image (image_url); only text"),
        (openai({"messages": [{"role": "user", "content": [{"type": "new"}]}]}), "is of the type 'new'"),
        (openai({"messages": [{"role": "user", "content": [{"text": "x"}]}]}), "is of no type"),
        (openai({"messages": [{"role": "user", "content": ["x"]}]}), "part 1 of the content of message 1"),
        (openai({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "is a string, not null"),
        (
            openai({"messages": [{"role": "assistant", "tool_calls": [1]}, *HI]}),
            "a call of a tool (tool_calls)",
        ),
        (openai({"messages": [{**HI[0], "name": "mira"}]}), "has 'name', which cannot be sent on"),
        (openai({"messages": HI, "tools": [1]}), "name one with --agent"),
        (openai({"messages": HI, "functions": [1]}), "name one with --agent"),
        (openai({"messages": HI, "n": 2}), "'body.n' is 1"),
        (openai({"messages": HI, "background": True}), "'body.background' cannot be"),
        (openai({"messages": HI, "model": ""}), "'body.model' is the name of a model"),
        (openai({"messages": HI, "model": None}), "or name --agent"),
        (openai({}, RESPONSES), "'body.input' is a list of messages, not null"),
        (openai({"input": [{"type": "reasoning"}]}, RESPONSES), "a model's reasoning (reasoning)"),
        (openai({"input": "Hi", "instructions": 7}, RESPONSES), "'body.instructions' is a string"),
        ({**anthropic({}), "params": []}, "'params' is an object, not a list"),
        (anthropic({"messages": HI}, method="POST"), "unknown key 'method'"),
        (anthropic({"messages": [{"role": "system", "content": "x"}]}), "it is one of user, assistant"),
        (anthropic({"messages": HI, "system": [IMAGE]}), "part 1 of 'params.system' is an image"),
        (anthropic({"messages": HI, "mcp_servers": [1]}), "'params.mcp_servers': a call with tools"),
    ],
)
def test_what_cannot_be_run_is_said_in_words(read, line, sentence):
    problem = read(line)
    assert isinstance(problem, str)
    assert sentence in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "part", ["image", "input_image", "document", "input_file", "input_audio", "tool_result"]
)
def test_with_an_agent_too_only_text_is_taken(read, part):
    line = anthropic({"messages": [{"role": "user", "content": [{"type": part}]}]})
    assert "only text can be sent" in read(line, agent="orders")
