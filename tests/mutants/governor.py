"""Bugs that somebody could plant in the governor, each with the tests that must notice it."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Mutant

RULES = "tests/store/test_governor.py"
LAW = "tests/store/test_governor_law.py"
SCRIPT = f"{LUA}/_governor.lua"
HEARD = f"{LUA}/governor_hear.lua"

GOVERNOR = (
    Mutant(
        "a refusal is no pause for the others",
        SCRIPT,
        "local limited = now < (l['until'] or 0)",
        "local limited = false",
        (RULES,),
    ),
    Mutant(
        "each refusal on its way is a step back",
        HEARD,
        "if is_news then step_back(taken) end",
        "step_back(taken)",
        (RULES,),
    ),
    Mutant(
        "a refusal halves the rate",
        HEARD,
        "l[d .. '_rate'] = math.max(rate, 0.9 * (l[d .. '_cap'] or 0))",
        "l[d .. '_rate'] = 0.5 * l[d .. '_rate']",
        (RULES, LAW),
    ),
    Mutant(
        "a rate grows whether or not anybody waits",
        SCRIPT,
        "if now - (l[d .. '_lack'] or 0) <= WANTED_MS and now >=",
        "if now >=",
        (RULES,),
    ),
    Mutant(
        "whoever asks goes before those who wait",
        SCRIPT,
        "local in_turn = ahead_ms <= TURN_MS",
        "local in_turn = true",
        (RULES, LAW),
    ),
    Mutant(
        "a call is corrected twice",
        f"{LUA}/step_commit.lua",
        "  if lane then settle_lane(",
        "  if lane then settle_lane(lane, id, 0, tonumber(used), 0) settle_lane(",
        (RULES,),
    ),
    Mutant(
        "every worker that meets an empty account says so",
        HEARD,
        "local is_first = redis.call('HSETNX', account, 'since', int(now)) == 1",
        "local is_first = redis.call('HSET', account, 'since', int(now)) >= 0",
        (RULES,),
    ),
    Mutant(
        "who is gone keeps its place in the line",
        SCRIPT,
        "    redis.call('ZREM', line_key(lane), unpack(gone))\n",
        "",
        (LAW,),
    ),
    Mutant(
        "what a refused call had taken is lost",
        HEARD,
        "l.t_level and l.t_level + taken",
        "l.t_level",
        (LAW,),
    ),
)
