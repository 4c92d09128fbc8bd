"""Bugs that `make chaos` must find by itself, with real workers that are killed and frozen."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Mutant

SHORT = "tests/system/test_chaos.py::test_a_run_with_every_kind_of_tool_survives_killed_and_frozen_workers"
"""The shorter form of it that `make test` has."""

CHAOS = (
    Mutant(
        "chaos: the fence is not checked in a commit",
        f"{LUA}/step_commit.lua",
        "if refused then return refused end\n",
        "",
        (SHORT,),
    ),
    Mutant(
        "chaos: a rescue does not forfeit",
        f"{LUA}/run_rescue.lua",
        "forfeit_open(id, run, scopes_in(f[4]))\n",
        "",
        (SHORT,),
    ),
    Mutant(
        "chaos: the journal is written after the tool",
        "agentq/tools/executor.py",
        "        answer = self.journal.begin(",
        "        invocation(call, self.ctx)()\n        answer = self.journal.begin(",
        (SHORT,),
    ),
    Mutant(
        "chaos: a case is over while its rows are submitted",
        "agentq/testing/play.py",
        "if submitted and not live:",
        "if submitter is not None and submitter.code == 0 and not live:",
        ("tests/unit/testing/test_play.py",),
    ),
)
