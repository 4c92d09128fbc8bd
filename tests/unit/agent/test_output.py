"""The form of an answer: what fits it, what is told of what does not, and what a run does about it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel, field_validator

from agentq.agent import Agent, Budgets, StopReason, Thread
from agentq.agent.loop import Close, End, Repair, apply_reply, begin, next_action
from agentq.agent.output import Output, json_answer, unfenced
from agentq.core.errors import UsageError
from agentq.core.money import NanoUSD
from agentq.provider.errors import InvalidRequest
from agentq.provider.scripted import ScriptedClient
from agentq.provider.types import ChatRequest, ChatResult, Role, ToolCall, Usage
from tests.unit.agent.helpers import Model, agent, look, reply


class Ticket(BaseModel):
    title: str
    priority: int = Field(ge=1, le=5)
    due: date | None = None

    @field_validator("title")
    @classmethod
    def said(cls, value: str) -> str:
        if value == "bug":
            raise RuntimeError("a bug of the user's")
        return value


GOOD = '{"title":"broken","priority":2,"due":"2026-01-31"}'
BAD = '{"title":"broken","priority":9}'
NOBODY: frozenset[str] = frozenset()


def typed(client: Any, **options: Any) -> Agent:
    return agent(client, look, output=Ticket, **options)


def played(*script: Any, **options: Any) -> tuple[Agent, ScriptedClient]:
    client = ScriptedClient(list(script))
    return typed(client, **options), client


# ── what fits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text", [GOOD, f"  {GOOD}\n", f"```json\n{GOOD}\n```", f"```\n{GOOD}\n```", f"```JSON\n{GOOD}```\n"]
)
def test_json_of_the_model_fits_also_in_a_fence_around_all_of_it(text: str):
    assert Output(Ticket).problem(text) is None
    assert Output(Ticket).read(text) == Ticket(title="broken", priority=2, due=date(2026, 1, 31))


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "it is empty"),
        ("It is broken.", "it is no JSON"),
        (f"Here you are: {GOOD}", "it is no JSON"),
        (f"```python\n{GOOD}\n```", "it is no JSON"),
        ("[1]", "no object"),
        ('{"title":"x","priority":NaN}', "NaN is no JSON"),
        (BAD, "priority: Input should be less than or equal to 5"),
        ('{"title":"x","priority":2,"due":"soon"}', "due: "),
        ("{}", "title: Field required; priority: Field required"),
        ('{"title":"bug","priority":1}', "a bug of the user's"),
        ('{"title":' * 100_000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"title":"x","priority":' + "9" * 5000 + "}", "it is no JSON"),
    ],
)
def test_what_does_not_fit_is_told_in_a_few_words(text: str, told: str):
    problem = Output(Ticket).problem(text)
    assert problem is not None
    assert told in problem
    assert len(problem) <= 600
    assert Output(Ticket).read(text) is None


def test_many_mistakes_are_told_as_some_and_how_many_more():
    fields: dict[str, Any] = {f"field_{n}": (int, ...) for n in range(30)}
    from pydantic import create_model

    wide = create_model("Wide", **fields)
    problem = Output(wide).problem("{}") or ""
    assert problem.endswith("and 22 more")


def test_half_a_character_in_a_wrong_answer_can_be_stored():
    class Word(BaseModel):
        word: str

        @field_validator("word")
        @classmethod
        def refused(cls, value: str) -> str:
            raise RuntimeError("\ud800")

    (Output(Word).problem('{"word":"x"}') or "").encode()


class Numbers(RootModel[list[int]]):
    pass


class Socket:
    pass


class Odd(BaseModel, arbitrary_types_allowed=True):
    socket: Socket


@pytest.mark.parametrize(
    "output, told",
    [
        ({"type": "object"}, "takes a pydantic model class"),
        (Ticket(title="x", priority=1), "takes a pydantic model class"),
        (BaseModel, "takes a pydantic model class"),
        (str, "takes a pydantic model class"),
        (Numbers, "its JSON is no object"),
        (Odd, "it has no JSON schema"),
    ],
)
def test_anything_but_a_model_of_an_object_is_refused_with_one_sentence(output: Any, told: str):
    with pytest.raises(UsageError, match=told) as caught:
        agent(ScriptedClient(["x"]), output=output)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_fence_that_is_none_stays():
    assert unfenced("```") == "```"
    assert unfenced("````") == "````"
    assert unfenced("``````") == ""
    with pytest.raises(ValueError, match="no JSON"):
        json_answer("``````")


# ── what a model is told ─────────────────────────────────────────────────────────────────────────────


def test_each_call_carries_the_schema_and_a_client_without_a_form_for_it_is_told():
    runs, client = played([("look", "{}")], "no", GOOD, system="Be brief.")
    assert runs.run(Thread(), "go").ok
    assert [request.json_schema for request in client.requests] == [Ticket.model_json_schema()] * 3
    for request in client.requests:
        assert request.system is not None
        assert request.system.startswith("Be brief.\n\n")
        assert '"priority"' in request.system


def test_a_client_that_has_a_form_for_it_is_told_nothing_more():
    class Native(ScriptedClient):
        native_schema = True

    client = Native([GOOD])
    assert typed(client, system="Be brief.").run(Thread(), "go").ok
    assert client.requests[0].system == "Be brief."
    assert client.requests[0].json_schema is not None


def test_the_form_is_part_of_the_definition_and_an_agent_without_one_is_what_it_was():
    plain, other = agent(ScriptedClient(["x"])), agent(ScriptedClient(["x"]), output=Ticket)
    assert plain.definition != other.definition
    assert plain.json_schema is None
    assert plain.run(Thread(), "go").output is None


# ── repairs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_good_answer_is_the_output():
    runs, client = played(GOOD)
    ended = runs.run(Thread(), "go")
    assert (ended.stop_reason, ended.answer, client.call_count) == (StopReason.FINISHED, GOOD, 1)
    assert ended.output == Ticket(title="broken", priority=2, due=date(2026, 1, 31))


def test_a_wrong_answer_is_sent_back_once_with_what_is_wrong():
    runs, client = played([("look", "{}")], BAD, f"```json\n{GOOD}\n```")
    ended = runs.run(Thread(), "go")
    assert ended.ok
    assert ended.output.priority == 2
    asked = client.requests[-1]
    assert asked.messages[-1].role is Role.USER
    assert "priority: Input should be less than or equal to 5" in asked.messages[-1].content
    assert (asked.tools, asked.tool_choice, asked.operation) == ((), "none", "agent_repair")
    assert ended.thread.spend.steps == ended.thread.step == 2
    kinds = [event.kind for event in ended.thread.trace]
    assert kinds == ["step", "tool_result", "step", "output_invalid", "repair", "finished"]
    assert Thread.from_json(ended.thread.to_json()) == ended.thread


@pytest.mark.parametrize("second", [BAD, "no", "", [("look", "{}")]])
def test_an_answer_that_stays_wrong_ends_the_run_and_says_what_is_wrong(second: Any):
    runs, client = played("no", second)
    ended = runs.run(Thread(), "go")
    assert (ended.stop_reason, ended.output, client.call_count) == (StopReason.OUTPUT_INVALID, None, 2)
    assert ended.stop_reason.is_failure
    assert ended.answer == ("" if isinstance(second, list) else second)
    last = ended.thread.trace[-1]
    assert (last.kind, last.ok) == ("output_invalid", False)
    assert last.detail == Output(Ticket).problem(ended.answer)


def test_an_answer_that_was_cut_off_is_wrong_even_where_it_parses():
    answers = iter([replace(reply(GOOD), finish_reason="length"), reply(GOOD)])
    runs = typed(Model(lambda _: next(answers)), max_output_tokens=77)
    ended = runs.run(Thread(), "go")
    assert ended.ok
    assert "cut off at the output cap of 77 tokens" in ended.thread.messages[2].content


def test_without_a_form_an_answer_that_was_cut_off_is_one():
    runs = agent(Model(lambda _: replace(reply("so far"), finish_reason="length")))
    assert runs.run(Thread(), "go").stop_reason is StopReason.FINISHED


def test_a_repair_is_no_step_but_the_other_budgets_hold_for_it():
    thread, runs = Thread(), typed(ScriptedClient(["x"]))
    begin(runs, thread, "go")
    apply_reply(runs, thread, reply("no"), cost=NanoUSD(5))
    one_step = Budgets(max_steps=1, max_tokens=None)
    assert next_action(runs, thread, one_step, NOBODY) == Repair(str(thread.repair))
    few = Budgets(max_steps=1, max_tokens=600)
    assert next_action(runs, thread, few, NOBODY) == Close(StopReason.TOKEN_BUDGET)
    thread.spend.seconds = 9
    brief = Budgets(max_steps=1, max_tokens=None, max_seconds=9)
    assert next_action(runs, thread, brief, NOBODY) == Close(StopReason.TIME_BUDGET)


def test_where_the_money_for_a_repair_is_not_there_the_closing_turn_answers():
    runs, client = played("no", GOOD, budgets=Budgets(max_tokens=1250))
    ended = runs.run(Thread(), "go")
    assert (ended.stop_reason, ended.answer) == (StopReason.TOKEN_BUDGET, GOOD)
    assert ended.output == Output(Ticket).read(GOOD)
    assert [request.operation for request in client.requests] == ["agent", "agent_closing"]


def test_the_answer_of_a_closing_turn_stays_though_it_does_not_fit():
    runs, client = played([("look", "{}")], "what I have", budgets=Budgets(max_steps=1))
    ended = runs.run(Thread(), "go")
    assert (ended.stop_reason, ended.answer, ended.output) == (StopReason.STEP_BUDGET, "what I have", None)
    assert client.call_count == 2
    assert client.requests[-1].json_schema is not None


def test_a_repair_that_fails_ends_the_run_as_any_call_would():
    def answer(request: ChatRequest) -> ChatResult:
        if request.operation == "agent_repair":
            raise InvalidRequest("no")
        return reply("no")

    ended = typed(Model(answer)).run(Thread(), "go")
    assert ended.stop_reason is StopReason.MODEL_ERROR
    # It goes on where it was: with the repair.
    assert Thread.from_json(ended.thread.to_json()).repair == ended.thread.repair
    answers = typed(Model(lambda _: reply(GOOD)))
    assert answers.run(Thread.from_json(ended.thread.to_json())).output.title == "broken"


def test_the_next_task_of_a_thread_begins_without_what_was_wrong_before():
    runs, client = played("no", "no", GOOD)
    thread = runs.run(Thread(), "go").thread
    again = runs.run(thread, "again")
    assert (again.ok, client.call_count, again.thread.repaired) == (True, 3, False)


def test_calls_that_come_with_a_repair_are_not_made_and_wait_for_nobody():
    call = ToolCall("c1", "look", "{}")
    answers = iter([reply("no"), replace(reply(GOOD, call), usage=Usage(10, 5))])
    ended = typed(Model(lambda _: next(answers))).run(Thread(), "go")
    assert ended.ok
    assert next_action(typed(ScriptedClient(["x"])), ended.thread, Budgets(), NOBODY) == End(
        StopReason.FINISHED
    )
    assert json.loads(ended.answer)["title"] == "broken"
