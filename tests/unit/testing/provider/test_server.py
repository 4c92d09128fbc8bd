"""The server: who is let in, what is answered by default, how fast, and what stands in the bill."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from agentq.core.errors import UsageError
from agentq.provider.waits import rate_limits
from agentq.testing import FakeProvider, Limits, Turn, lognormal, uniform
from agentq.testing.provider import Request, load_script
from agentq.testing.provider.limits import Bucket
from tests.support.wait import wait_until
from tests.unit.testing.provider.conftest import HEADERS, calls, hello, text, tools

ALL = ["chat", "responses", "messages"]
OUTPUT = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["city", "tags"],
    "additionalProperties": False,
}

TEXT = {"type": "text", "text": "x"}
ITEM = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
EMPTY, BLANK = {"type": "text", "text": ""}, {"type": "text", "text": " "}
OUTCOME = {"type": "function_call_output", "call_id": "a", "output": "x"}


def formatted(dialect: str) -> dict:
    named = {"name": "plan", "schema": OUTPUT, "strict": True}
    match dialect:
        case "chat":
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case "responses":
            return {"text": {"format": {"type": "json_schema", **named}}}
    return {"output_config": {"format": {"type": "json_schema", "schema": OUTPUT}}}


# ---- who answers


@pytest.mark.parametrize("dialect", ALL)
def test_an_answer_that_must_fit_a_schema_does(ask, dialect):
    assert json.loads(text(dialect, ask(dialect, **formatted(dialect)))) == {"city": "text", "tags": ["text"]}


@pytest.mark.parametrize("dialect", ALL)
def test_the_tool_that_must_be_called_is_called(ask, dialect):
    other = json.loads(json.dumps(tools(dialect)).replace("get_order", "cancel_order"))
    forced = {
        "chat": {"type": "function", "function": {"name": "cancel_order"}},
        "responses": {"type": "function", "name": "cancel_order"},
        "messages": {"type": "tool", "name": "cancel_order"},
    }[dialect]
    reply = ask(dialect, tools=[*tools(dialect), *other], tool_choice=forced)
    assert [call[1] for call in calls(dialect, reply)] == ["cancel_order"]


@pytest.mark.parametrize("dialect", ALL)
def test_a_tool_is_not_called_twice_without_a_script(ask, dialect):
    ((call_id, name, arguments),) = calls(dialect, ask(dialect, tools=tools(dialect)))
    said: dict[str, Any] = hello(dialect)
    match dialect:
        case "chat":
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            said["messages"] += [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": "sent"},
            ]
        case "responses":
            said["input"] += [
                {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments},
                {"type": "function_call_output", "call_id": call_id, "output": "sent"},
            ]
        case _:
            call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "sent"}
            said["messages"] += [
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
    assert text(dialect, ask(dialect, **said, tools=tools(dialect))) == 'You said: "hello".'


def test_a_script_is_played_by_how_often_the_assistant_spoke_and_its_last_turn_repeats(provider, ask):
    provider.script = ["one", "two"]
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    found = [text("chat", ask("chat", messages=said * times + said[:1])) for times in range(3)]
    assert found == ["one", "two", "two"]


def test_each_model_may_have_its_own_script(provider, ask):
    provider.script = {"gpt": ["of gpt"], "*": ["of the others"]}
    assert text("chat", ask("chat", model="gpt")) == "of gpt"
    assert text("messages", ask("messages", model="claude")) == "of the others"


def test_a_function_may_answer_and_sees_the_request(provider, ask):
    def answer(request: Request) -> str:
        return f"{request.dialect} {request.model} {request.text} {request.turn}"

    provider.script = answer
    assert text("responses", ask("responses")) == "responses m hello 0"


def test_a_function_that_raises_is_named_in_the_answer(provider, ask):
    provider.script = lambda request: request.body["nothing"]
    reply = ask("chat")
    assert (reply.status_code, "script failed: KeyError" in reply.text) == (400, True)


@pytest.mark.parametrize(
    "script, reason",
    [
        ([], "at least one turn"),
        ("a text", "at least one turn"),
        ([{"txt": "x"}], "no field 'txt'"),
        ([["get_order"]], "'get_order' is no call"),
        ([[]], "is no turn"),
    ],
)
def test_a_script_that_is_none_is_refused_before_the_server_starts(script, reason):
    with pytest.raises(UsageError, match=reason):
        FakeProvider(script)


def test_a_script_comes_from_a_file_in_the_same_form(tmp_path, provider, ask):
    path = tmp_path / "turns.json"
    path.write_text('[[["get_order", {"id": 7}]], {"text": "Sent.", "thinking": "Hm."}]')
    provider.script = load_script(path)
    assert calls("messages", ask("messages", tools=tools("messages")))[0][2] == {"id": 7}
    path.write_text("[")
    with pytest.raises(UsageError, match="is not JSON"):
        load_script(path)


def test_a_schema_that_nothing_can_be_made_up_for_is_named(ask):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}, "required": ["a"]}
    reply = ask("messages", tools=[{"name": "f", "input_schema": schema}])
    assert reply.status_code == 400
    assert "can make up nothing for the tool f" in reply.json()["error"]["message"]


def test_tokens_may_be_set_by_the_script(provider, ask):
    provider.script = [
        Turn(text="x", input_tokens=1_000, output_tokens=50, reasoning_tokens=20, cached_tokens=600)
    ]
    usage = ask("chat").json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1_000, 50)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 600
    usage = ask("messages").json()["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (400, 600, 50)


def test_equal_requests_count_equal_tokens_and_have_ids_of_their_own(ask):
    first, second = ask("chat").json(), ask("chat").json()
    assert first["usage"] == second["usage"]
    assert first["id"] != second["id"]


# ---- who is let in


@pytest.mark.parametrize("dialect", ALL)
def test_a_request_without_a_key_is_refused(ask, dialect):
    headers = {"anthropic-version": "2023-06-01"}
    assert ask(dialect, headers=headers).status_code == 401


def test_anthropic_wants_its_version(ask):
    reply = ask("messages", headers={"x-api-key": "k"})
    assert reply.json()["error"]["message"] == "anthropic-version: header is required"


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(ask, dialect, raw):
    assert ask(dialect, raw=raw).status_code == 400


@pytest.mark.parametrize(
    "dialect, body, reason",
    [
        ("chat", {"messages": ...}, "Missing required parameter: 'messages'"),
        ("chat", {"messages": []}, "empty array"),
        ("chat", {"messages": ["x"]}, "expected an object"),
        ("chat", {"messages": [{"role": "robot", "content": "x"}]}, "Invalid value: 'robot'"),
        ("chat", {"messages": [{"role": "assistant", "content": None}]}, "expected a string, got null"),
        ("chat", {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "preceeding message"),
        ("chat", {"model": ...}, "Missing required parameter: 'model'"),
        ("chat", {"model": 5}, "expected a string"),
        ("chat", {"max_tokens": 5, "max_completion_tokens": 5}, "at the same time"),
        ("chat", {"max_tokens": 0}, "below minimum"),
        ("chat", {"temperature": 3}, "above maximum"),
        ("chat", {"tools": []}, "empty array"),
        ("chat", {"tool_choice": "none"}, "only allowed when 'tools'"),
        ("chat", {"parallel_tool_calls": False}, "only allowed when 'tools'"),
        ("chat", {"stream_options": {"include_usage": True}}, "only allowed when 'stream'"),
        ("chat", {"max_output_tokens": 5}, "Unknown parameter"),
        ("chat", {"response_format": {"type": "json_object"}}, "must contain the word 'json'"),
        ("chat", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "does not match pattern"),
        ("responses", {"input": ...}, "Missing required parameter: 'input'"),
        ("responses", {"max_output_tokens": 5}, "Expected a value >= 16"),
        ("responses", {"max_tokens": 50}, "Unknown parameter"),
        ("responses", {"input": [{"role": "user", "content": [TEXT]}]}, "Invalid value: 'text'"),
        ("responses", {"input": [ITEM]}, "No tool output found"),
        ("responses", {"input": [OUTCOME]}, "No tool call found"),
        ("responses", {"previous_response_id": "resp_1"}, "not found"),
        ("messages", {"max_tokens": ...}, "max_tokens: Field required"),
        ("messages", {"messages": []}, "at least one message"),
        ("messages", {"messages": [{"role": "assistant", "content": "x"}]}, "first message"),
        ("messages", {"messages": [{"role": "user", "content": ""}]}, "non-empty content"),
        ("messages", {"messages": [{"role": "user", "content": [EMPTY]}]}, "must be non-empty"),
        ("messages", {"messages": [{"role": "user", "content": [BLANK]}]}, "non-whitespace"),
        ("messages", {"parallel_tool_calls": False}, "Extra inputs are not permitted"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 10}}, "greater than or equal to 1024"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 2_000}}, "must be greater than"),
        ("messages", {"tools": [{"name": "f"}]}, "input_schema: Field required"),
        ("messages", {"tool_choice": {"type": "any"}}, "while providing `tools`"),
    ],
)  # fmt: skip
def test_what_the_service_refuses_is_refused_in_its_words(ask, dialect, body, reason):
    reply = ask(dialect, **body)
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]


def use(call_id: str) -> dict:
    return {"type": "tool_use", "id": call_id, "name": "get_order", "input": {}}


def result(call_id: str) -> dict:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}


@pytest.mark.parametrize(
    "turns, reason",
    [
        ([[use("a"), use("b")], [result("a")]], "without `tool_result` blocks immediately after: b"),
        ([[use("a")], [{"type": "text", "text": "x"}, result("a")]], "without `tool_result` blocks"),
        ([[use("a")], [result("b"), result("a")]], "unexpected `tool_use_id`"),
        ([[use("a")], [result("a"), result("a")]], "single result"),
        ([[use("a"), use("a")], [result("a")]], "ids must be unique"),
        ([[use("a.b")], [result("a.b")]], "should match pattern"),
        ([[use("a")]], "without `tool_result` blocks"),
    ],
)
def test_anthropic_wants_every_result_right_behind_its_call(ask, turns, reason):
    said = hello("messages")["messages"]
    for i, blocks in enumerate(turns):
        said.append({"role": "user" if i % 2 else "assistant", "content": blocks})
    reply = ask("messages", messages=said, tools=tools("messages"))
    assert reply.status_code == 400
    assert reason.lower() in reply.json()["error"]["message"].lower()


def test_results_without_any_tools_are_refused_by_anthropic(ask):
    said = [*hello("messages")["messages"], {"role": "assistant", "content": [use("a")]}]
    said.append({"role": "user", "content": [result("a")]})
    assert "must define tools" in ask("messages", messages=said).text


def test_more_parameters_are_taken_when_that_is_said(provider, ask):
    assert ask("chat", provider={"order": ["x"]}).status_code == 400
    provider.service.extra_parameters = {"provider"}
    assert ask("chat", provider={"order": ["x"]}).status_code == 200


def test_a_window_that_is_full_is_an_overflow(provider, ask):
    provider.service.window = 100
    long = [{"role": "user", "content": "x" * 500}]
    assert ask("chat", messages=long).json()["error"]["code"] == "context_length_exceeded"
    assert "prompt is too long: 125 tokens > 100" in ask("messages", messages=long, max_tokens=10).text
    assert ask("chat").status_code == 200


def test_a_path_that_is_not_there_is_a_404(provider):
    for path in ("embeddings", "chat", "models/a/b/../../nothing", ""):
        assert httpx.post(f"{provider.url}/{path}", json={}, headers=HEADERS).status_code == 404


def test_what_is_no_http_does_not_end_the_server(provider, ask):
    with socket.create_connection(("127.0.0.1", provider.port)) as line:
        line.sendall(b"\x16\x03\x01\x00\r\n\r\n")
        line.settimeout(5)
        line.recv(1_000)
    assert ask("chat").status_code == 200


# ---- limits


def test_a_limit_refuses_and_says_exactly_how_long_to_wait(provider, ask):
    provider.limits = Limits(requests_per_minute=600)
    found = [ask("chat") for _ in range(20)]
    refused = [reply for reply in found if reply.status_code == 429]
    assert refused
    assert {reply.json()["error"]["code"] for reply in refused} == {"rate_limit_exceeded"}
    wait_ms = int(refused[-1].headers["retry-after-ms"])
    assert 0 < wait_ms <= 100
    assert refused[-1].headers["retry-after"] == "1"
    time.sleep(wait_ms / 1000)
    assert ask("chat").status_code == 200


def test_tokens_are_counted_in_and_out(provider, ask):
    provider.limits = Limits(tokens_per_minute=6_000, burst_s=2)
    provider.script = [Turn(text="x", input_tokens=150, output_tokens=45)]
    assert [ask("chat").status_code for _ in range(2)] == [200, 429]
    assert "tokens per min (TPM): Limit 6000" in ask("chat").json()["error"]["message"]


def test_a_call_larger_than_the_bucket_is_let_in_when_it_is_full_and_leaves_a_debt(provider, ask):
    provider.limits = Limits(tokens_per_minute=6_000)
    provider.script = [Turn(text="x", input_tokens=1_000, output_tokens=0)]
    assert ask("chat").status_code == 200
    assert 9_900 <= int(ask("chat").headers["retry-after-ms"]) <= 10_000


def test_each_key_and_each_model_has_its_own_limit(provider, ask):
    provider.limits = Limits(requests_per_minute=1)
    assert [ask("chat").status_code for _ in range(2)] == [200, 429]
    assert ask("chat", model="another").status_code == 200
    assert ask("chat", headers={"authorization": "Bearer another"}).status_code == 200


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_limits_are_told_on_every_answer_when_they_are_to_be(provider, ask, dialect):
    provider.limits = Limits(requests_per_minute=60, tokens_per_minute=60_000, headers=True)
    first, second = ask(dialect), ask(dialect)
    assert (first.status_code, second.status_code) == (200, 429)
    found = rate_limits(dict(first.headers))
    assert found is not None
    assert found.requests is not None
    assert (found.requests.limit, found.requests.remaining) == (60, 0)
    assert 0.5 < (found.requests.reset_s or 0) <= 2.1  # a date in headers has whole seconds
    assert rate_limits(dict(second.headers)) is not None


def test_limits_may_change_while_it_runs(provider, ask):
    provider.limits = Limits(requests_per_minute=1)
    assert [ask("chat").status_code for _ in range(2)] == [200, 429]
    provider.limits = None
    assert ask("chat").status_code == 200


def test_a_bucket_gains_nothing_from_callers_that_come_out_of_order():
    bucket = Bucket(0.0)
    bucket.fill(0.0, 60, 10)
    bucket.take(10)
    levels = [bucket.fill(now, 60, 10) for now in (2.0, 1.0, 2.0, 0.0, 2.0)]
    assert levels == [2.0] * 5


def test_over_time_exactly_the_rate_gets_through(provider):
    provider.limits = Limits(requests_per_minute=1_200, burst_s=0.5)  # 20 a second, 10 at once
    until = time.monotonic() + 2

    def press(client: httpx.Client) -> None:
        while time.monotonic() < until:
            client.post(f"{provider.url}/chat/completions", json=hello("chat"), headers=HEADERS)

    with httpx.Client() as client, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(press, client) for _ in range(4)]:
            done.result()
    assert 40 <= provider.bill.totals.answered <= 10 + 40 + 6
    assert provider.bill.totals.limited > 10


# ---- how fast


@pytest.mark.parametrize("latency", [0.05, uniform(0.05, 0.06), lognormal(0.06, 0.01)])
def test_an_answer_takes_as_long_as_it_is_to(provider, ask, latency):
    provider.latency = latency
    began = time.monotonic()
    ask("chat")
    assert time.monotonic() - began >= 0.05


def test_latencies_are_drawn_alike_from_the_same_seed():
    def drawn(seed: int) -> list[float]:
        provider = FakeProvider(latency=lognormal(0.4, 0.5), seed=seed)
        return [provider.draw_latency() for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_calls_that_wait_do_not_wait_for_one_another(provider):
    provider.latency = 0.5
    began = time.monotonic()
    with httpx.Client() as client, ThreadPoolExecutor(16) as pool:
        url = f"{provider.url}/chat/completions"
        sent = [pool.submit(client.post, url, json=hello("chat"), headers=HEADERS) for _ in range(16)]
        assert {done.result().status_code for done in sent} == {200}
    assert time.monotonic() - began < 3


# ---- the bill, and the end


def test_the_bill_agrees_with_what_clients_were_told(provider, ask):
    told = [ask(dialect).json()["usage"] for dialect in ALL]
    entries = provider.bill.entries
    assert [entry.dialect for entry in entries] == ALL
    assert [entry.input_tokens for entry in entries] == [
        told[0]["prompt_tokens"],
        told[1]["input_tokens"],
        told[2]["input_tokens"],
    ]
    totals = provider.bill.totals
    assert totals.input_tokens == sum(entry.input_tokens for entry in entries)
    assert (totals.requests, totals.answered) == (3, 3)


def test_what_was_refused_is_in_the_bill_and_costs_nothing(provider, ask):
    provider.faults = "rate_limited"
    ask("chat")
    (entry,) = provider.bill.entries
    assert (entry.status, entry.input_tokens, entry.faults) == (429, 0, ("rate_limited",))


def test_what_is_lost_on_its_way_is_in_the_bill(provider, ask):
    provider.faults = "closed"
    with pytest.raises(httpx.TransportError):
        ask("chat")
    assert provider.bill.totals.output_tokens > 0


def test_the_bill_s_file_has_a_line_for_each_request_when_it_is_answered(tmp_path):
    path = tmp_path / "bill.jsonl"
    with FakeProvider(bill_file=path) as provider:
        for number in (1, 2):
            httpx.post(f"{provider.url}/chat/completions", json=hello("chat"), headers=HEADERS)
            lines = path.read_text().splitlines()
            assert [json.loads(line)["number"] for line in lines] == list(range(1, number + 1))


def test_no_key_is_kept_anywhere(tmp_path):
    key, path = "sk-secret-0123456789", tmp_path / "bill.jsonl"
    with FakeProvider(bill_file=path, keys={"another"}) as provider:
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key, "anthropic-version": "1"}):
            for name in ("chat/completions", "messages"):
                reply = httpx.post(f"{provider.url}/{name}", json=hello("chat"), headers=headers)
                assert key not in reply.text
        provider.service.keys = None
        httpx.post(
            f"{provider.url}/chat/completions", json=hello("chat"), headers={"authorization": f"Bearer {key}"}
        )
        assert key not in repr([vars_of(request) for request in provider.requests])
    assert key not in path.read_text()
    assert provider.requests[-1].key == "…6789"


def vars_of(request: Request) -> dict:
    return {name: getattr(request, name) for name in Request.__dataclass_fields__}


def test_requests_are_kept_as_they_were_sent_and_not_without_end():
    with FakeProvider(keep=2) as provider:
        for number in range(3):
            body = {**hello("chat"), "seed": number}
            httpx.post(f"{provider.url}/chat/completions", json=body, headers={**HEADERS, "x-mine": "yes"})
        assert [request.body["seed"] for request in provider.requests] == [1, 2]
        assert provider.requests[0].headers["x-mine"] == "yes"
        httpx.post(f"{provider.url}/chat/completions", json={"model": "m"}, headers=HEADERS)
        assert provider.requests[-1].body == {"model": "m"}  # refused, and there all the same


def test_a_connection_is_used_again(provider):
    with httpx.Client() as client:
        for _ in range(3):
            reply = client.post(f"{provider.url}/chat/completions", json=hello("chat"), headers=HEADERS)
            assert reply.headers.get("connection") != "close"
        stream = client.post(
            f"{provider.url}/chat/completions", json={**hello("chat"), "stream": True}, headers=HEADERS
        )
        assert stream.text.endswith("data: [DONE]\n\n")


def test_stop_ends_calls_that_wait_and_leaves_no_thread():
    before = set(threading.enumerate())
    provider = FakeProvider(latency=60).start()
    with ThreadPoolExecutor(1) as pool:
        url = f"{provider.url}/chat/completions"
        waiting = pool.submit(httpx.post, url, json=hello("chat"), headers=HEADERS, timeout=30)
        wait_until(lambda: provider.bill.totals.requests == 1, "the request")
        provider.stop()
        with pytest.raises(httpx.TransportError):
            waiting.result(5)
    wait_until(lambda: not set(threading.enumerate()) - before, "its threads to end")
    provider.stop()


def test_a_port_in_use_is_one_sentence(provider):
    with pytest.raises(UsageError, match=f"port {provider.port} of 127.0.0.1 is in use"):
        FakeProvider(port=provider.port).start()


def test_a_bill_that_cannot_be_written_is_said_before_it_starts(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory"):
        FakeProvider(bill_file=tmp_path / "not" / "there").start()


def test_the_fake_provider_needs_neither_celery_nor_redis():
    code = (
        "import sys; from agentq.testing import FakeProvider; "
        "print([n for n in ('celery', 'redis', 'kombu', 'click') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
