"""Bugs that somebody could plant in the feeder, each with the tests that must notice it."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Mutant

RULES = "tests/store/test_feeder.py"
SLOTS = "tests/store/test_slots.py"
ROWS = "tests/store/test_rows.py"
ADD = "tests/store/test_batch_add.py"
ABORT = "tests/store/test_batch_abort.py"
TUNE = "tests/store/test_batch_tune.py"
REVIVE = "tests/store/test_batch_revive.py"
DROP = "tests/store/test_batch_drop.py"
FEEDER = f"{LUA}/_feeder.lua"
SLOTS_LUA = f"{LUA}/_slots.lua"

FEEDER_MUTANTS = (
    Mutant(
        "feeder: a row goes in its order, whatever its priority",
        f"{LUA}/batch_add.lua",
        "int((9 - tonumber(ARGV[first + 3])) * 1e12 + order + i)",
        "int(order + i)",
        (ADD, RULES),
    ),
    Mutant(
        "feeder: a conflict is told after the rows before it were added",
        f"{LUA}/batch_add.lua",
        "if hash ~= ARGV[first + 2] then return {'CONFLICT', int(i), run} end",
        "if hash ~= ARGV[first + 2] then\n"
        "  redis.call('HINCRBY', batch, 'total', #new)\n"
        "  return {'CONFLICT', int(i), run}\n"
        "end",
        (ADD,),
    ),
    Mutant(
        "feeder: whoever lost a batch to another loader goes on adding",
        f"{LUA}/batch_add.lua",
        "if loader ~= mine then return {'LOST'} end",
        "loader, was = loader or mine, was or '0'",
        (ADD,),
    ),
    Mutant(
        "feeder: a load that is taken back leaves its custom ids",
        f"{LUA}/batch_abort.lua",
        "  redis.call('HDEL', batch .. ':ids', row[2])\n",
        "",
        (ABORT,),
    ),
    Mutant(
        "feeder: an aborted load of a batch that was over leaves it open",
        f"{LUA}/batch_abort.lua",
        "  if was == '1' then",
        "  if was == '2' then",
        (ABORT,),
    ),
    Mutant(
        "feeder: a window is one too wide",
        FEEDER,
        "redis.call('SCARD', P .. 'slots') < most_slots do",
        "redis.call('SCARD', P .. 'slots') <= most_slots do",
        (RULES,),
    ),
    Mutant(
        "feeder: a tenant with nothing in flight waits for a slot",
        FEEDER,
        "return mine == 0 or all",
        "return all",
        (RULES,),
    ),
    Mutant(
        "feeder: a weight makes turns dearer",
        FEEDER,
        "tokens / weight), tenant)",
        "tokens * weight), tenant)",
        (RULES,),
    ),
    Mutant(
        "feeder: a run is not charged with what it has needed",
        f"{LUA}/_runs.lua",
        "  charge(tenant, batch, used - charged)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "feeder: who costs nothing has all turns",
        f"{LUA}/_runs.lua",
        "  used = math.max(used, LEAST_CHARGE)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "feeder: a tenant that comes later begins at nothing",
        FEEDER,
        "local at = tonumber(first[2] or 0)",
        "local at = 0",
        (RULES,),
    ),
    Mutant(
        "feeder: a batch's cap counts all of its tenant",
        FEEDER,
        "redis.call('SCARD', P .. 'slots:b:' .. batch) + delayed >= tonumber(f[6])",
        "redis.call('SCARD', P .. 'slots:t:' .. f[1]) + delayed > tonumber(f[6])",
        (RULES, TUNE),
    ),
    Mutant(
        "feeder: a tenant's cap is for those without one of their own",
        FEEDER,
        "local most = f[1] or f[2]",
        "local most = f[2] or f[1]",
        (RULES,),
    ),
    Mutant(
        "feeder: a cap of open runs is not looked at",
        FEEDER,
        "if f[7] and",
        "if false and",
        (RULES, TUNE),
    ),
    Mutant(
        "feeder: a batch that has no money goes on admitting",
        FEEDER,
        "if not f[1] or f[2] or f[3] or f[4] then return nil end",
        "if not f[1] or f[2] or f[3] then return nil end",
        (RULES,),
    ),
    Mutant(
        "feeder: a batch whose run has money again waits until that run is over",
        SLOTS_LUA,
        "  -- PART feeder\n  offer(batch)\n",
        "",
        (RULES,),
    ),
    Mutant(
        "feeder: a paused batch goes on admitting",
        FEEDER,
        "if not f[1] or f[2] or f[3] or f[4] then return nil end",
        "if not f[1] or f[2] or f[4] then return nil end",
        (RULES,),
    ),
    Mutant(
        "feeder: a run that leaves its slot gives it to nobody",
        SLOTS_LUA,
        "  feed(tenant, FED_AT_ONCE)\n",
        "",
        (SLOTS, RULES),
    ),
    Mutant(
        "feeder: a slot is left in the set of its batch",
        SLOTS_LUA,
        "    if of_batch then redis.call('SREM', P .. 'slots:b:' .. batch, id) end\n",
        "",
        (SLOTS,),
    ),
    Mutant(
        "feeder: a delayed run keeps its slot",
        f"{LUA}/step_release.lua",
        "if delay > 0 then delay_slot(id, run) end",
        "",
        (SLOTS,),
    ),
    Mutant(
        "feeder: a run whose delay is over takes no slot",
        f"{LUA}/tick.lua",
        "      if f[4] and sent == 0 then take_slot_again(id, run) end\n",
        "",
        (SLOTS,),
    ),
    Mutant(
        "feeder: another priority does not move a batch that takes turns",
        f"{LUA}/batch_tune.lua",
        "int((old - new) * PRIORITY_STEP)",
        "int(0)",
        (TUNE,),
    ),
    Mutant(
        "feeder: rows that are revived still count as ended",
        f"{LUA}/batch_revive.lua",
        "redis.call('HINCRBY', batch, 'ended', -count)",
        "redis.call('HINCRBY', batch, 'ended', 0)",
        (REVIVE,),
    ),
    Mutant(
        "feeder: rows are revived while a cancel has not come to all runs",
        f"{LUA}/batch_revive.lua",
        "if f[2] and redis.call('SCARD', batch .. ':open') > 0 then return {'CANCELLING'} end",
        "",
        (REVIVE,),
    ),
    Mutant(
        "feeder: rows that are dropped are no ends",
        FEEDER,
        "    redis.call('HINCRBY', key, 'ended', dropped)\n",
        "",
        (DROP,),
    ),
    Mutant(
        "feeder: a row of a load that may be taken back is made a run",
        FEEDER,
        "if not batch or not redis.call('ZSCORE', feed_of(batch), id) or",
        "if not batch or",
        (ROWS,),
    ),
    Mutant(
        "feeder: a run keeps the limit of its template, whatever its row says",
        FEEDER,
        "local usd_limit = row[5] ~= '' and row[5] or t[7]",
        "local usd_limit = t[7]",
        (ROWS,),
    ),
)
