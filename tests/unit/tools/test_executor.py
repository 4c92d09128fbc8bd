"""Each call has one result: gates in their order, time limits, parallel reads, ordered writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from agentq.tools import CallContext, ToolExecutor, ToolRegistry, ToolResult, call_signature, tool
from agentq.tools.result import ERROR_CODES
from agentq.tools.threads import DaemonThreads

PATIENCE_S = 10.0


class Odd(BaseModel):
    """A model whose check has a bug of its own."""

    n: int

    @field_validator("n")
    @classmethod
    def fail(cls, n: int) -> int:
        raise KeyError("oops")


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def odd(it: Odd) -> int:
    """Take an odd thing."""
    return 1


@tool(side_effect=True, requires_approval=True)
def pay(ctx: CallContext, amount: int) -> str:
    """Pay."""
    return f"paid {amount} with {ctx.idempotency_key}"


def executor(*tools: Callable[..., Any]) -> ToolExecutor:
    return ToolExecutor(ToolRegistry(tools or (add, odd, pay)))


@pytest.mark.parametrize(
    "name, arguments, code, says",
    [
        ("sub", "{}", "no_such_tool", "add, odd, pay"),
        ("add", "{", "bad_json", "not JSON"),
        ("add", "[1]", "bad_json", "object, not a list"),
        ("add", '{"a": NaN}', "bad_json", "NaN"),
        ("add", "[" * 100_000, "bad_json", "nested too deeply"),
        ("add", "", "bad_args", "'a': Field required"),
        ("add", '{"a": "x"}', "bad_args", "'a': Input should be a valid integer"),
        ("add", '{"a": 1, "c": 2}', "bad_args", "'c' is not an argument (they are: a, b)"),
        ("odd", '{"it": {"n": 1}}', "bad_args", "could not be checked: KeyError"),
        ("pay", '{"amount": "much"}', "bad_args", "'amount'"),
        ("pay", '{"amount": 1}', "needs_approval", "A person must approve"),
    ],
)
def test_a_gate_refuses_with_a_code_and_an_instruction(
    name: str, arguments: str, code: str, says: str
) -> None:
    """`check` says the same without running anything."""
    result = executor().call(name, arguments)
    assert (result.ok, result.error_code) == (False, code)
    assert says in result.content
    check = executor().check(name, arguments)
    assert check is not None
    assert check.error_code == code
    assert code in ERROR_CODES


def test_a_tool_outside_the_allowlist_is_named_nowhere() -> None:
    """Neither in its own refusal nor in that of a tool that does not exist."""
    for name, code in (("pay", "not_allowed"), ("sub", "no_such_tool")):
        result = executor().call(name, "{}", allowlist=["add"])
        assert result.error_code == code
        assert "add" in result.content
        assert "pay" not in result.content
        assert "odd" not in result.content


def test_an_approved_call_is_made_and_no_other() -> None:
    """The approval is for the signature: the arguments in any order, but these."""
    ctx = CallContext(approved_calls=frozenset({call_signature("pay", {"amount": 5})}), run_id="run_1")
    made = executor().call("pay", '{ "amount" : 5 }', ctx)
    assert made.content == f"paid 5 with run_1:{call_signature('pay', {'amount': 5})}"
    assert executor().check("pay", '{"amount": 5}', ctx) is None
    assert executor().call("pay", '{"amount": 6}', ctx).error_code == "needs_approval"


def test_a_key_that_is_given_is_kept_and_without_a_run_there_is_none() -> None:
    """A key that is the same in every run would join what must stay apart."""
    approved = frozenset({call_signature("pay", {"amount": 5})})
    given = CallContext(approved_calls=approved, run_id="r", idempotency_key="mine")
    assert executor().call("pay", '{"amount": 5}', given).content == "paid 5 with mine"
    bare = CallContext(approved_calls=approved)
    assert executor().call("pay", '{"amount": 5}', bare).content == "paid 5 with "


def test_the_cache_answers_before_the_approval_gate() -> None:
    """What was done once in the run is neither done nor asked for again."""
    cache: dict[str, str] = {}
    signature = call_signature("pay", {"amount": 5})
    first = executor().call(
        "pay", '{"amount": 5}', CallContext(approved_calls=frozenset({signature})), cache=cache
    )
    assert cache == {signature: first.content}
    again = executor().call("pay", '{"amount": 5}', cache=cache)
    assert (again.ok, again.cached, again.content) == (True, True, first.content)
    assert executor().check("pay", '{"amount": 5}', cache=cache) is None


def test_only_good_results_of_tools_that_act_once_are_stored() -> None:
    """Reads, repeatable tools and failures are not."""
    calls: list[str] = []

    @tool(side_effect=True, repeatable=True)
    def ring() -> str:
        """Ring the bell."""
        calls.append("ring")
        return "rung"

    @tool(side_effect=True)
    def fail() -> str:
        """Fail."""
        calls.append("fail")
        raise RuntimeError("broken")

    cache: dict[str, str] = {}
    run = executor(add, ring, fail)
    for _ in range(2):
        run.call_many([("add", '{"a":1}'), ("ring", ""), ("fail", "")], cache=cache)
    assert cache == {}
    assert calls == ["ring", "fail", "ring", "fail"]


def test_the_same_write_twice_in_one_step_acts_once() -> None:
    """The second gets the first one's result."""
    calls: list[int] = []

    @tool(side_effect=True)
    def push(n: int) -> str:
        """Push."""
        calls.append(n)
        return "pushed"

    results = executor(push).call_many([("push", '{"n":1}'), ("push", '{"n": 1}')], cache={})
    assert [result.cached for result in results] == [False, True]
    assert calls == [1]


def test_reads_run_side_by_side() -> None:
    """Three reads that wait for each other can only end together."""
    barrier = threading.Barrier(3, timeout=PATIENCE_S)

    @tool
    def meet(n: int) -> int:
        """Wait for the others."""
        barrier.wait()
        return n

    results = executor(meet).call_many([("meet", f'{{"n":{n}}}') for n in range(3)])
    assert [result.content for result in results] == ["0", "1", "2"]


def test_a_write_waits_for_what_is_before_it_and_runs_alone() -> None:
    """In the declared order, whatever takes how long."""
    log: list[str] = []

    @tool
    def read(n: int) -> str:
        """Read slowly."""
        time.sleep(0.01 * n)
        log.append(f"read {n}")
        return ""

    @tool(side_effect=True)
    def write(n: int) -> str:
        """Write."""
        log.append(f"begin {n}")
        time.sleep(0.01)
        log.append(f"end {n}")
        return ""

    order = [("read", 3), ("read", 1), ("write", 1), ("write", 2), ("read", 0)]
    results = executor(read, write).call_many([(name, f'{{"n":{n}}}') for name, n in order])
    assert all(result.ok for result in results)
    assert log == ["read 1", "read 3", "begin 1", "end 1", "begin 2", "end 2", "read 0"]


def test_refused_calls_keep_their_place() -> None:
    """One result for each call, in order."""
    results = executor().call_many([("sub", ""), ("add", '{"a":1}'), ("pay", '{"amount":1}'), ("add", "{")])
    assert [result.error_code for result in results] == ["no_such_tool", None, "needs_approval", "bad_json"]
    assert executor().call_many([]) == []


def test_a_slow_read_times_out_and_a_slow_write_has_an_unknown_outcome() -> None:
    """The write may have acted: the model is told to verify before anything else."""
    release = threading.Event()

    @tool(timeout_s=0.05)
    def look() -> str:
        """Look."""
        release.wait()
        return ""

    @tool(side_effect=True, timeout_s=0.05)
    def act() -> str:
        """Act."""
        release.wait()
        return ""

    cache: dict[str, str] = {}
    read, write = executor(look, act).call_many([("look", ""), ("act", "")], cache=cache)
    release.set()
    assert (read.error_code, read.retryable) == ("timeout", True)
    assert (write.error_code, write.retryable) == ("outcome_unknown", False)
    assert "verified" in write.content
    assert cache == {}


def test_an_exception_is_told_by_class_without_a_traceback() -> None:
    """And shortened, and with advice; also one that would end the process."""

    @tool
    def broken() -> str:
        """Break."""
        raise LookupError("x" * 5000)

    @tool(side_effect=True)
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    first, second = executor(broken, leave).call_many([("broken", ""), ("leave", "")])
    assert first.error_code == second.error_code == "tool_error"
    assert first.content.startswith("The tool failed with LookupError: xxx")
    assert len(first.content) < 700
    assert "Traceback" not in first.content
    assert "SystemExit: 3" in second.content
    assert "verify" in second.content


def test_an_async_tool_runs() -> None:
    """In the call's own thread."""

    @tool
    async def later(n: int) -> int:
        """Answer later."""
        await asyncio.sleep(0)
        return n + 1

    assert executor(later).call("later", '{"n": 1}').content == "2"


def test_a_long_result_is_cut_and_says_by_how_much() -> None:
    """Nothing is lost silently."""

    @tool(max_result_chars=10)
    def long() -> str:
        """Be long."""
        return "x" * 25

    assert executor(long).call("long", "").content == "x" * 10 + "\n[cut: 15 more characters omitted]"


@pytest.mark.parametrize(
    "value, content",
    [
        ({"é": [1, None]}, '{"é":[1,null]}'),
        (None, "null"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("\ud800", "?"),
        (Odd.model_construct(n=2), '{"n":2}'),
        (ToolResult(True, "x"), None),
        (threading.Lock, None),
    ],
)
def test_whatever_a_tool_returns_becomes_text(value: object, content: str | None) -> None:
    """What cannot be JSON becomes its text: the tool has acted, so it is no error."""

    @tool
    def give() -> Any:
        """Give."""
        return value

    result = executor(give).call("give", "")
    assert result.ok
    result.content.encode()
    if content is not None:
        assert result.content == content


def test_without_a_free_thread_the_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sentence, and as something that may work later."""
    monkeypatch.setattr("agentq.tools.running.TOOL_THREADS", DaemonThreads(limit=0))
    result = executor().call("add", '{"a": 1}')
    assert (result.error_code, result.retryable) == ("tool_error", True)
    assert "was not started" in result.content


def test_a_failure_has_a_known_code() -> None:
    """A typing error in a code is found where it is made."""
    with pytest.raises(ValueError, match="no error code"):
        ToolResult.failure("oops", "x")
