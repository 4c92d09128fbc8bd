"""What the scripted model does in a case: the user's own script, or one call of each tool and an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentq.agent import Agent
from agentq.testing.arguments import NoArgumentsError, arguments_for, example_of
from agentq.tools import ToolSpec

Turn = str | list[list[str]]
ANSWER = "Done."


@dataclass(frozen=True, slots=True)
class Script:
    """The turns, and the tools of the agent that are in none of them, each with the reason."""

    turns: list[Turn]
    left_out: dict[str, str] = field(default_factory=dict)


def default_script(agent: Agent) -> Script:
    """The tools that only read together in a turn, those that act in the next, then an answer.

    An agent whose answers have a form gives a wrong one first, so that its repair is played too.
    """
    left_out: dict[str, str] = {}
    turns: list[Turn] = []
    specs = agent.executor.registry.visible(agent.allowlist)
    for acting in (False, True):
        calls = _calls([spec for spec in specs if spec.side_effect is acting], left_out)
        most = agent.max_calls_per_step
        turns += [calls[start : start + most] for start in range(0, len(calls), most)]
    return Script([*turns, ANSWER, *_repaired(agent)], left_out)


def _repaired(agent: Agent) -> list[Turn]:
    """The answer to a repair call: the least that the agent's output takes, if that can be made."""
    if agent.output is None:
        return []
    try:
        answer = json.dumps(example_of(agent.output.schema), ensure_ascii=False, default=str)
    except NoArgumentsError:
        return []
    return [answer] if agent.output.problem(answer) is None else []


def _calls(specs: Sequence[ToolSpec], left_out: dict[str, str]) -> list[list[str]]:
    calls = []
    for spec in specs:
        try:
            calls.append([spec.name, json.dumps(arguments_for(spec), ensure_ascii=False, default=str)])
        except NoArgumentsError as error:
            left_out[spec.name] = str(error)
    return calls


def tools_of(turns: Any) -> list[str]:
    """The tools that a script calls, each once, in their order. Of what is no script: none."""
    if not isinstance(turns, list):
        return []
    pairs = [pair for turn in turns if isinstance(turn, list) for pair in turn]
    return list(dict.fromkeys(str(pair[0]) for pair in pairs if isinstance(pair, list) and pair))
