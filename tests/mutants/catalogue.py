"""Bugs that somebody could plant in the ledger, each with the tests that must notice it.

A mutant is one exact change of one file. Its text must stand there once: when the code has changed, the
runner says so and the mutant is written anew, so that none is lost in silence.
"""

from __future__ import annotations

from dataclasses import dataclass

LUA = "agentq/store/lua"
RULES = "tests/store/test_ledger_rules.py"
FAILURES = "tests/store/test_known_failures.py"
CALLS = "tests/engine/test_known_failures.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug.

    `text`, which must occur once in `file`, becomes `planted`; `tests` are what must notice it.
    """

    name: str
    file: str
    text: str
    planted: str
    tests: tuple[str, ...]


MUTANTS = (
    # ── what fits ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        ">= for >",
        f"{LUA}/_fit.lua",
        "if used + usd > limit then",
        "if used + usd >= limit then",
        ("tests/store/test_budget_reserve.py",),
    ),
    Mutant(
        "a scope is not asked",
        f"{LUA}/_fit.lua",
        "  end\n  for _, a in ipairs(accounts) do\n",
        "  end\n  for _, a in ipairs({accounts[1], unpack(accounts, 3)}) do\n",
        ("tests/store/test_budget_reserve.py",),
    ),
    Mutant(
        "a frozen scope still reserves",
        f"{LUA}/_fit.lua",
        "if a[WORDS] and string.find(a[WORDS], 'frozen', 1, true) then return a, 'usd', 'frozen' end",
        "",
        (RULES,),
    ),
    Mutant(
        "the hold is shrunk until it fits",
        f"{LUA}/_fit.lua",
        "if used + usd > limit then",
        "if used < limit then usd = math.min(usd, limit - used) end\n      if used + usd > limit then",
        (FAILURES,),
    ),
    Mutant(
        "only what is spent counts",
        f"{LUA}/_fit.lua",
        "local used = spent + (a[USD_RESERVED] or 0) + (a[USD_ESCROWED] or 0) - own_usd",
        "local used = spent",
        (FAILURES,),
    ),
    Mutant(
        "a ledger that is missing is opened by a reserve",
        f"{LUA}/budget_reserve.lua",
        "if not l[1] then return {'NO_LEDGER'} end",
        "",
        (RULES,),
    ),
    Mutant(
        "a hidden default of 9,999 steps",
        "agentq/agent/budgets.py",
        "    max_steps: int | None = 12\n",
        "    max_steps: int | None = 9_999\n",
        (CALLS,),
    ),
    # ── who may write, and when ──────────────────────────────────────────────────────────────────
    Mutant(
        "written before it is validated",
        f"{LUA}/budget_reserve.lua",
        "local usd, tokens, escrow_usd, escrow_tokens\n",
        "redis.call('HSET', open, 'n', fence .. ' ' .. int(n) .. ' 1')\n"
        "local usd, tokens, escrow_usd, escrow_tokens\n",
        ("tests/store/test_budget_reserve.py",),
    ),
    Mutant(
        "commit without the fence",
        f"{LUA}/_runs.lua",
        "if state == 'running' and current == mine then return nil end",
        "if state == 'running' then return nil end",
        (RULES,),
    ),
    Mutant(
        "reserve without the fence",
        f"{LUA}/budget_reserve.lua",
        "if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end",
        "if f[1] ~= 'running' then return {'STALE'} end",
        ("tests/store/test_budget_reserve.py",),
    ),
    Mutant(
        "a replay says OK after a release",
        f"{LUA}/budget_reserve.lua",
        "if h[3] and n == tonumber(number) then",
        "if n == tonumber(number) then",
        (RULES,),
    ),
    Mutant(
        "a top-up is applied again",
        f"{LUA}/budget_topup.lua",
        "if before then return before end",
        "",
        (RULES,),
    ),
    Mutant(
        "a charge is booked again",
        f"{LUA}/budget_book.lua",
        "if before then return before end",
        "",
        (RULES,),
    ),
    # ── how a reservation closes ─────────────────────────────────────────────────────────────────
    Mutant(
        "settled twice",
        f"{LUA}/_reservations.lua",
        "    redis.call('HDEL', run .. ':open', reservation)\n    if settles then",
        "    if settles then",
        (FAILURES,),
    ),
    Mutant(
        "a settle keeps its hold",
        f"{LUA}/_reservations.lua",
        "post('settle', name, accounts, {us = usd, ts = tokens, ur = -h.usd, tr = -h.tokens, uo",
        "post('settle', name, accounts, {us = usd, ts = tokens, uo",
        (FAILURES,),
    ),
    Mutant(
        "a late settle counts twice",
        f"{LUA}/_reservations.lua",
        "  redis.call('HDEL', run .. ':forfeits', reservation)\n",
        "",
        (FAILURES,),
    ),
    Mutant(
        "a late settle is added to the forfeit",
        f"{LUA}/_reservations.lua",
        "{us = usd - full.usd, ts = tokens - full.tokens, uf = -full.usd, uo = over}",
        "{us = usd, ts = tokens, uf = -full.usd, uo = over}",
        (FAILURES,),
    ),
    Mutant(
        "a forfeit refunds",
        f"{LUA}/_reservations.lua",
        "{us = h.usd, ts = h.tokens, ur = -h.usd, tr = -h.tokens, uf = h.usd}",
        "{ur = -h.usd, tr = -h.tokens}",
        (FAILURES,),
    ),
    Mutant(
        "a forfeit keeps its hold",
        f"{LUA}/_reservations.lua",
        "{us = h.usd, ts = h.tokens, ur = -h.usd, tr = -h.tokens, uf = h.usd}",
        "{us = h.usd, ts = h.tokens, uf = h.usd}",
        (FAILURES,),
    ),
    Mutant(
        "a rescue leaves the dead worker's hold",
        f"{LUA}/run_rescue.lua",
        "forfeit_open(id, run, scopes_in(f[4]))\n",
        "",
        (FAILURES,),
    ),
    Mutant(
        "a scope is not settled",
        f"{LUA}/_reservations.lua",
        "post('settle', name, accounts, {us",
        "post('settle', name, {unpack(accounts, 2)}, {us",
        (FAILURES,),
    ),
    Mutant(
        "overage is capped",
        f"{LUA}/_reservations.lua",
        "post('settle', name, accounts, {us = usd, ts",
        "post('settle', name, accounts, {us = math.min(usd, h.usd), ts",
        (RULES,),
    ),
    Mutant(
        "an unclear call is given back",
        "agentq/engine/step.py",
        'how = "forfeit" if is_unclear(error) else "release"',
        'how = "release"',
        (CALLS,),
    ),
    # ── the escrow ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "the escrow is added instead of set",
        f"{LUA}/budget_reserve.lua",
        "ue = escrow_usd - own.usd, te = escrow_tokens - own.tokens",
        "ue = escrow_usd, te = escrow_tokens",
        ("tests/store/test_budget_reserve.py",),
    ),
    Mutant(
        "the escrow outlives its run",
        f"{LUA}/_runs.lua",
        "  release_escrow(id, run, scopes)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "the escrow is restored over one that is there",
        f"{LUA}/_reservations.lua",
        "elseif how == 'restore' and redis.call('HEXISTS', run .. ':open', 'escrow') == 0 then",
        "elseif how == 'restore' then",
        (RULES,),
    ),
    Mutant(
        "a closing turn leaves its escrow for another",
        f"{LUA}/budget_convert.lua",
        "redis.call('HDEL', run .. ':open', 'escrow')\n",
        "",
        (RULES,),
    ),
    # ── windows ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "settled in today's window instead of its own",
        f"{LUA}/_reservations.lua",
        "    local accounts = with(scopes, h.windows)\n",
        "    local accounts = {}\n"
        "    for _, a in ipairs(accounts_of(scopes)) do accounts[#accounts + 1] = a.name end\n",
        (RULES,),
    ),
    Mutant(
        "the month for the day",
        f"{LUA}/_ledger.lua",
        "  if kind == 'day' then return string.format",
        "  if kind == 'month' then return string.format",
        (RULES,),
    ),
    Mutant(
        "the escrow stays in the window of yesterday",
        f"{LUA}/budget_reserve.lua",
        "  if #left > 0 then post('move', id, left, {ue = -own.usd, te = -own.tokens}) end\n",
        "",
        (RULES,),
    ),
    # ── parked runs ──────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a ZREM is missing",
        f"{LUA}/_parking.lua",
        "  redis.call('ZREM', list_key(list), id)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "woken without a check",
        f"{LUA}/_parking.lua",
        "  if not a then\n    if closed",
        "  if true then\n    if closed",
        (RULES,),
    ),
    Mutant(
        "woken past a head that waits",
        f"{LUA}/_parking.lua",
        "    if closed and not admitted then return 'stays' end\n",
        "",
        (RULES,),
    ),
    Mutant(
        "the same money is promised to all who wait",
        f"{LUA}/_fit.lua",
        "local taken = promised and promised[a.name]",
        "local taken = nil",
        (RULES,),
    ),
    Mutant(
        "a settle wakes nobody",
        f"{LUA}/step_commit.lua",
        "ARGV[8], usd, tokens) then wake(scopes) end",
        "ARGV[8], usd, tokens) then scopes = scopes end",
        (RULES,),
    ),
    Mutant(
        "idle is not undone when a run goes on",
        f"{LUA}/_parking.lua",
        "  mark_idle(run, scopes, -1)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "admitted past a head that waits",
        f"{LUA}/budget_reserve.lua",
        "  if not a then a, unit, kind = queue_in_front() end\n",
        "",
        (RULES,),
    ),
    Mutant(
        "one who has waited for a minute is overtaken",
        f"{LUA}/budget_reserve.lua",
        "(not admitted or holds_all_up(a, head, waits_since))",
        "not admitted",
        (RULES,),
    ),
    Mutant(
        "runs at work are stopped for their escrows by one who waits for these",
        f"{LUA}/_fit.lua",
        " + (a[of_tokens and TOKEN_ESCROWED or USD_ESCROWED] or 0)\n",
        "\n",
        ("tests/store/test_parking_edges.py",),
    ),
    Mutant(
        "what is frozen is asked last",
        f"{LUA}/_fit.lua",
        "'frozen', 1, true) then return a, 'usd', 'frozen' end\n  end\n  for _, a in ipairs(accounts) do\n",
        "'frozen', 1, true) then return a, 'usd', 'frozen' end\n",
        ("tests/store/test_parking_edges.py",),
    ),
    # ── the log, and a server that was rolled back ───────────────────────────────────────────────
    Mutant(
        "the fold loses the tokens",
        f"{LUA}/ledger_fold.lua",
        "string.gmatch(fields.d, '(%a+) (-?%d+)')",
        "string.gmatch(fields.d, '(u%a+) (-?%d+)')",
        (RULES,),
    ),
    Mutant(
        "reservations are not counted",
        f"{LUA}/budget_reserve.lua",
        "counted = int(known + 1)",
        "counted = '1'",
        (RULES,),
    ),
    Mutant(
        "the last number that was acknowledged counts, and not the highest",
        "agentq/store/operations.py",
        "self._acknowledged = max(self._acknowledged, number)",
        "self._acknowledged = number",
        (RULES,),
    ),
    Mutant(
        "a rollback is not noticed",
        f"{LUA}/budget_reserve.lua",
        "if known < tonumber(ARGV[5]) then return {'ROLLBACK', int(known)} end",
        "",
        (RULES,),
    ),
    Mutant(
        "a bill is asserted twice",
        f"{LUA}/ledger_reassert.lua",
        " or redis.call('HEXISTS', P .. 'reasserted', name) == 1 then",
        " then",
        (RULES,),
    ),
)
