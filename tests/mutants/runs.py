"""Bugs that somebody could plant in how runs act, wait, go on and end, and the tests that must notice."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Mutant

BEGIN = "tests/store/test_effect_begin.py"
DONE = "tests/store/test_effect_done.py"
CLAIM = "tests/store/test_step_claim.py"
RESCUE = "tests/store/test_run_rescue.py"
TICK = "tests/store/test_tick.py"
SCHEMA = "tests/store/test_schema.py"
DECIDE = "tests/store/test_approval_decide.py"
EXECUTOR = "tests/unit/tools/test_journal.py"
EFFECTS = "tests/engine/test_effects.py"
CONTROL = "tests/engine/test_control.py"
RETRY = "tests/engine/test_retry.py"
DEFINITIONS = "tests/engine/test_definitions.py"

RUNS = (
    # ── side effects ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a tool acts before it is written down",
        "agentq/tools/executor.py",
        "        answer = self.journal.begin(",
        "        invocation(call, self.ctx)()\n        answer = self.journal.begin(",
        (EXECUTOR,),
    ),
    Mutant(
        "a step goes on whatever its journal says",
        "agentq/tools/executor.py",
        "            self.journal.check()\n",
        "            pass\n",
        (EXECUTOR,),
    ),
    Mutant(
        "an intent without the fence",
        f"{LUA}/effect_begin.lua",
        "if f[1] ~= 'running' or f[2] ~= fence then",
        "if f[1] ~= 'running' then",
        (BEGIN,),
    ),
    Mutant(
        "what may have acted is made again",
        f"{LUA}/effect_begin.lua",
        "  if not result and ARGV[7] ~= 'retry' then return {'UNKNOWN'} end\n",
        "",
        (BEGIN,),
    ),
    Mutant(
        "what is done is made again",
        f"{LUA}/effect_begin.lua",
        "  if result and result ~= 'again' then return {'DONE', result} end\n",
        "",
        (BEGIN,),
    ),
    Mutant(
        "an equal call is made while nobody knows of the first",
        f"{LUA}/effect_begin.lua",
        "    if of == step and what == signature then return {'UNKNOWN'} end\n",
        "",
        (BEGIN,),
    ),
    Mutant(
        "a good result answers no equal call",
        f"{LUA}/effect_begin.lua",
        "  if content then return {'CACHED', content} end\n",
        "",
        (BEGIN,),
    ),
    Mutant(
        "reads are not kept with the intent",
        f"{LUA}/effect_begin.lua",
        " redis.call('HSET', journal, kept[i], 'done ' .. fence .. ' ' .. step .. ' - ' .. kept[i + 1])",
        "",
        (BEGIN,),
    ),
    Mutant(
        "a read before a call that is refused counts as kept",
        "agentq/tools/executor.py",
        "        self.results.append(self._ended(started))\n        self.held",
        "        self.results.append(self._ended(started))\n        self.unkept = {}\n        self.held",
        (EXECUTOR,),
    ),
    Mutant(
        "a fact is refused for the run's fence",
        f"{LUA}/effect_done.lua",
        "local opened = fence",
        "if f[3] ~= fence then return {'GONE'} end\nlocal opened = fence",
        (DONE,),
    ),
    Mutant(
        "a fact is taken from any attempt",
        f"{LUA}/effect_done.lua",
        "if known ~= intent and known ~= done then return {'GONE'} end",
        "if not known then return {'GONE'} end",
        (DONE,),
    ),
    Mutant(
        "a result of who has lost the run passes for one in time",
        f"{LUA}/effect_done.lua",
        " and f[3] == fence and ARGV[8] == '0'",
        " and ARGV[8] == '0'",
        (DONE,),
    ),
    Mutant(
        "a late result is not in the trace",
        f"{LUA}/effect_done.lua",
        "redis.call('RPUSH', run .. ':trace', ARGV[7])\n",
        "",
        (DONE,),
    ),
    Mutant(
        "a late result answers no equal call",
        f"{LUA}/effect_done.lua",
        "if content[1] then redis.call('HSET', run .. ':cache', signature, content[1]) end\n",
        "",
        (DONE,),
    ),
    Mutant(
        "a late result leaves a key without an end",
        f"{LUA}/effect_done.lua",
        " redis.call('PEXPIRE', run .. part, ttl)",
        "",
        (DONE,),
    ),
    Mutant(
        "a commit forgets what is not known to be done",
        f"{LUA}/_runs.lua",
        "    if string.sub(journal[i], 1, 5) == 'done ' then redis",
        "    if journal[i] then redis",
        (BEGIN,),
    ),
    Mutant(
        "a commit keeps what is done",
        f"{LUA}/step_commit.lua",
        "  forget_done(run)\n  fields[#fields + 1] = 'step'\n",
        "  fields[#fields + 1] = 'step'\n",
        (BEGIN,),
    ),
    Mutant(
        "a plain tool is called again",
        "agentq/engine/effects.py",
        "retry=spec.idempotent or allowed",
        "retry=True",
        (f"{EFFECTS}::test_a_worker_that_dies_around_a_tool_never_makes_a_plain_one_act_twice",),
    ),
    Mutant(
        "an idempotent tool is not called again",
        "agentq/engine/effects.py",
        "retry=spec.idempotent or allowed",
        "retry=allowed",
        (f"{EFFECTS}::test_a_worker_that_dies_around_a_tool_never_makes_a_plain_one_act_twice",),
    ),
    Mutant(
        "what an earlier attempt has done answers no equal call",
        "agentq/tools/executor.py",
        "            self._keep(planned)\n",
        "",
        (EXECUTOR,),
    ),
    Mutant(
        "calls that may act again have one key",
        "agentq/tools/executor.py",
        'f":{planned.id}" if call.spec.repeatable and planned.id else ""',
        '""',
        (EXECUTOR,),
    ),
    # ── decisions ─────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a decision is taken twice",
        f"{LUA}/approval_decide.lua",
        "  return {'TAKEN', first}\n",
        "",
        (DECIDE,),
    ),
    Mutant(
        "a step runs before all its calls are decided",
        f"{LUA}/approval_decide.lua",
        "if #open == 0 then decided",
        "if #open >= 0 then decided",
        (DECIDE,),
    ),
    Mutant(
        "a decision counts when its time is over",
        f"{LUA}/approval_decide.lua",
        "if now >= tonumber(f[3]) then return {'EXPIRED'} end\n",
        "",
        (DECIDE,),
    ),
    Mutant(
        "a run that has ended stays in the inbox",
        f"{LUA}/_runs.lua",
        "  redis.call('ZREM', P .. 'inbox', id)\n  forfeit_open",
        "  forfeit_open",
        (DECIDE,),
    ),
    Mutant(
        "an approved call is asked again",
        "agentq/engine/step.py",
        "frozenset(call_signature(call.name, call.arguments) for call, _ in self.decided)",
        "frozenset[str]()",
        (
            "tests/engine/test_approvals.py::test_an_approved_call_is_made_once_and_the_model_is_not_asked_again",
        ),
    ),
    Mutant(
        "a call whose arguments a person has changed is not approved",
        "agentq/tools/gates.py",
        "if spec.requires_approval and not approved and",
        "if spec.requires_approval and",
        (EXECUTOR,),
    ),
    Mutant(
        "a wait that is over ends the run also where the model is to be told",
        f"{LUA}/run_rescue.lua",
        "if state == 'waiting' and f[9] == 'tell' then",
        "if state == 'waiting' and f[10] == 'never' then",
        (RESCUE,),
    ),
    # ── pause, cancel, retry ──────────────────────────────────────────────────────────────────────────
    Mutant(
        "a claim does not look at the run's pause",
        f"{LUA}/step_claim.lua",
        "  local paused = f[10]\n",
        "  local paused = nil\n",
        (CLAIM,),
    ),
    Mutant(
        "a claim does not look at the batch's pause",
        f"{LUA}/step_claim.lua",
        "    paused = paused or b[2]\n",
        "",
        (CLAIM,),
    ),
    Mutant(
        "a held run is lost by the tick",
        f"{LUA}/tick.lua",
        "redis.call('ZADD', watch, int(now + HELD_LOOK_MS), id)",
        "redis.call('ZREM', watch, id)",
        (TICK,),
    ),
    Mutant(
        "a held run is never let go",
        f"{LUA}/tick.lua",
        "if is_paused(h[1], h[2]) and not cancelled then",
        "if h then",
        (TICK,),
    ),
    Mutant(
        "a held run's escrow is not idle",
        f"{LUA}/_parking.lua",
        "int(now_ms() + HELD_LOOK_MS), id)\n  mark_idle(run, scopes, 1)\n",
        "int(now_ms() + HELD_LOOK_MS), id)\n",
        (f"{CONTROL}::test_a_held_run_keeps_its_escrow_and_gives_it_back_when_it_is_cancelled",),
    ),
    Mutant(
        "the audit takes a held run's escrow for one at work",
        f"{LUA}/_reservations.lua",
        "state == 'waiting' or state == 'held' end",
        "state == 'waiting' end",
        ("tests/store/test_audit.py",),
    ),
    Mutant(
        "a held child of a cancelled run stays held",
        f"{LUA}/tick.lua",
        "is_orphan(scopes) or ",
        "",
        (TICK,),
    ),
    Mutant(
        "who lets a batch go on lets go what was paused by itself",
        f"{LUA}/run_resume.lua",
        "\nelseif f[5] then return {'HELD', 'run'} end",
        "\nend",
        (f"{CONTROL}::test_resuming_a_batch_lets_no_run_go_that_was_paused_by_itself",),
    ),
    Mutant(
        "a cancel does not raise the fence",
        f"{LUA}/_cancelling.lua",
        "'fence', int(fence_int(fence) + 1) .. '-' .. fence_nonce(fence))",
        "'fence', fence)",
        ("tests/store/test_run_cancel.py",),
    ),
    Mutant(
        "a retry keeps the closing turn",
        f"{LUA}/run_retry.lua",
        "redis.call('LTRIM', run .. ':msgs', 0, keep - 1)\n",
        "",
        (f"{RETRY}::test_a_run_that_its_steps_have_stopped_goes_on_with_more_from_before_its_closing_turn",),
    ),
    Mutant(
        "a retry leaves the run's keys their end",
        f"{LUA}/run_retry.lua",
        "for _, part in ipairs(RUN_PARTS) do redis.call('PERSIST', run .. part) end\n",
        "",
        (f"{RETRY}::test_a_run_that_its_steps_have_stopped_goes_on_with_more_from_before_its_closing_turn",),
    ),
    Mutant(
        "a retry lets the rows of a cancelled batch go on",
        f"{LUA}/run_retry.lua",
        "  return {'CANCELLING', f[4]}\n",
        "",
        ("tests/store/test_run_retry.py",),
    ),
    Mutant(
        "a fork takes the run as it is read",
        "agentq/engine/fork.py",
        "        if parts.head == reopening.last:  # each step that is committed changes it\n",
        "        if parts.head:\n",
        ("tests/engine/test_fork.py",),
    ),
    Mutant(
        "a retry leaves the run counted as ended",
        f"{LUA}/run_retry.lua",
        "  redis.call('HINCRBY', batch, 'ended', -1)\n",
        "",
        (f"{RETRY}::test_a_batch_is_retried_as_far_as_it_can_be_and_is_over_again_afterwards",),
    ),
    # ── suspects ──────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a suspect is not alone",
        f"{LUA}/step_claim.lua",
        "if is_suspect and ARGV[6] ~= '1' then",
        "if is_suspect and ARGV[6] == 'never' then",
        (CLAIM,),
    ),
    Mutant(
        "suspects of one process come back together",
        f"{LUA}/run_rescue.lua",
        "{'deaths', int(deaths), 'not_before', int(due)}",
        "{'deaths', int(deaths)}",
        (RESCUE,),
    ),
    Mutant(
        "a commit does not forget the deaths",
        f"{LUA}/step_commit.lua",
        "if f[4] then redis.call('HDEL', run, 'deaths') end\n",
        "",
        ("tests/store/test_step_commit.py",),
    ),
    Mutant(
        "a process takes any number of suspects",
        "agentq/engine/suspects.py",
        "guard.acquire(blocking=False)",
        "True",
        ("tests/unit/engine/test_suspects.py",),
    ),
    # ── releases ──────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a new form is in force while an older worker is alive",
        f"{LUA}/worker_sign_on.lua",
        "if oldest == SCHEMA then",
        "if oldest then",
        (SCHEMA,),
    ),
    Mutant(
        "the dead hold a new form up",
        f"{LUA}/worker_sign_on.lua",
        " redis.call('HDEL', schemas, gone)",
        "",
        (SCHEMA,),
    ),
    Mutant(
        "an older worker claims from a newer state",
        f"{LUA}/step_claim.lua",
        "if l[2] and tonumber(l[2]) > SCHEMA then return {'SCHEMA', l[2]} end\n",
        "",
        (CLAIM,),
    ),
    Mutant(
        "a pinned run goes on with another definition",
        "agentq/engine/step.py",
        'if agent.on_change == "pin" and',
        'if agent.on_change == "never" and',
        (
            f"{DEFINITIONS}::test_a_pinned_run_is_left_to_a_worker_that_has_the_old_one_and_costs_nothing_here",
        ),
    ),
    Mutant(
        "a changed definition is not remembered",
        "agentq/engine/step.py",
        '        self.fields["definition"] = definition\n',
        "",
        (f"{DEFINITIONS}::test_a_run_goes_on_with_the_new_one_says_so_once_and_remembers_it",),
    ),
)
