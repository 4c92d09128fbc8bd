-- Runs that wait for money, and who of them goes on when some comes back. Needs _base, _ledger, _reservations, _fit and _slots.
--
-- `parked:<list>` holds the runs that do not fit into one scope (or its windows), by the time at which each began to wait
-- for money, which it keeps when it is parked again. `parked` are the lists that have somebody.

-- ── park and unpark ─────────────────────────────────────────────────────────────────────────────
local function enlist(list, id, since)
  if redis.call('ZADD', list_key(list), int(since), id) == 1 then
    redis.call('SADD', P .. 'parked', list)
    redis.call('HSET', LEDGER, 'parked', redis.call('SCARD', P .. 'parked'))
  end
end

local function strike(list, id)
  redis.call('ZREM', list_key(list), id)
  if redis.call('EXISTS', list_key(list)) == 0 then
    redis.call('SREM', P .. 'parked', list)
    redis.call('HDEL', LEDGER, 'sweep:' .. list)
    redis.call('HSET', LEDGER, 'parked', redis.call('SCARD', P .. 'parked'))
  end
end

-- When somebody must look at a parked run without being asked: at the window's end, or when it has waited too long.
local function look_at(a, kind, till)
  -- Who has waited too long for a person to end the freeze is parked again, before its closing turn as well.
  if kind == 'frozen' then return math.max(till, now_ms() + AGED_MS) end
  if a.window and kind ~= 'never' then return math.min(till, window_end(a.window)) end
  return till
end

-- Leave `running` and wait for money. The escrow stays. `need` is `usd tokens`, the call and the escrow
-- together, and where the call may be made smaller, behind it the same of its smallest size.
local function park(id, run, scopes, a, unit, kind, need, policy, park_ms, op, fields)
  local now = now_ms()
  local f = redis.call('HMGET', run, 'fence', 'claimed', 'ms', 'parked')
  local since = tonumber(f[4]) or now
  local spent = (tonumber(f[3]) or 0) + math.max(0, now - (tonumber(f[2]) or now))
  local till = since + park_ms
  mark_idle(run, scopes, 1)
  redis.call('HSET', run, 'state', 'parked', 'fence', raised(f[1]), 'ms', int(spent), 'parked', int(since),
    'park_scope', a.list, 'park_unit', unit, 'park_kind', kind, 'park_need', need, 'park_policy', policy,
    'park_till', int(till), 'op', op, unpack(fields))
  enlist(a.list, id, since)
  redis.call('ZADD', P .. 'watch', int(look_at(a, kind, till)), id)
  -- What a run around it holds is no other row's money.
  local is_shared = string.sub(a.list, 1, 4) ~= 'run:'
  if is_shared and redis.call('HEXISTS', run .. ':open', 'escrow') == 0 then mark_dry(id, run) end
  return_slot(id, run)
end

-- Leave `parked`, for whatever comes next.
local function unpark(id, run, scopes)
  mark_idle(run, scopes, -1)
  strike(redis.call('HGET', run, 'park_scope'), id)
  redis.call('HDEL', run, 'park_scope', 'park_unit', 'park_kind', 'park_need', 'park_policy', 'park_till')
  end_dry(id, run)
end

-- ── pause ───────────────────────────────────────────────────────────────────────────────────────
-- How often the tick looks whether a paused run may go on after all: who resumed its batch may not have come to it.
local HELD_LOOK_MS = 300000

-- `paused` of the run's hash, or of its batch's. Both are flags: they count where a run would be claimed.
local function is_paused(own, batch)
  return own or (batch and batch ~= '' and redis.call('HEXISTS', P .. 'batch:' .. batch, 'paused') == 1)
end

-- Queued, and paused: no hint brings it to a worker. Its escrow stays.
local function hold(id, run, scopes)
  redis.call('HSET', run, 'state', 'held')
  redis.call('ZADD', P .. 'watch', int(now_ms() + HELD_LOOK_MS), id)
  mark_idle(run, scopes, 1)
  return_slot(id, run)
end

-- Back to queued. Without a message: the tick sends the first one.
local function let_go(id, run, scopes)
  local now = now_ms()
  local due = math.max(now, tonumber(redis.call('HGET', run, 'not_before')) or 0)
  mark_idle(run, scopes, -1)
  redis.call('HSET', run, 'state', 'queued', 'not_before', int(due))
  redis.call('HDEL', run, 'hints')
  redis.call('ZADD', P .. 'watch', int(due), id)
  if due <= now then take_slot_again(id, run) end
end

-- Queue a run that waited. The hint that it left when it began to wait is pushed; without one the tick sends it.
local function queue_at_once(id, run)
  local now = now_ms()
  local left, since, tenant, batch = unpack(redis.call('HMGET', run, 'wake_hint', 'parked', 'tenant', 'batch'))
  redis.call('HSET', run, 'state', 'queued')
  take_slot(id, tenant, batch)
  if left then
    local grace, queue, message = string.match(left, '^(%d+) (%S+) (.*)$')
    redis.call('HDEL', run, 'wake_hint')
    -- The money that came back is promised to nobody: who has waited long goes to the front, or others take it again.
    push_hint(queue, message, tenant, since and now - since > AGED_MS)
    redis.call('ZADD', P .. 'watch', int(now + tonumber(grace)), id)
  else
    redis.call('HSET', run, 'not_before', int(now))
    redis.call('ZADD', P .. 'watch', int(now), id)
  end
end

-- Let a parked run try again: it keeps its place in case it is denied again.
local function resume(id, run, scopes)
  unpark(id, run, scopes)
  queue_at_once(id, run)
end

-- ── wake ────────────────────────────────────────────────────────────────────────────────────────
-- Look at one parked run. Answers 'woken', 'moved' (to the list of the scope that blocks it), 'stays', 'waits' (it stays,
-- and calls in flight are what it waits for) or 'blocks' (it has
-- waited so long that nobody may overtake it). `closed`: somebody before it waits, and nobody is admitted past him.
local function look(list, id, since, promised, closed)
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'scopes', 'park_need', 'park_kind', 'park_policy', 'park_till', 'park_unit')
  if f[1] ~= 'parked' then
    strike(list, id)
    return 'moved'
  end
  local scopes = scopes_in(f[2])
  local own, admitted = escrow_of(run)
  local need, least = string.match(f[3], '^(%d+ %d+) ?(.*)$')
  need = held(need)
  local accounts = accounts_of(scopes)
  local a, unit, kind = obstacle(accounts, need.usd, need.tokens, own, true, promised)
  if least ~= '' and a and goes_smaller(kind) then
    -- When it was parked this size could still come; by now only a smaller one can.
    need = held(least)
    a, unit, kind = obstacle(accounts, need.usd, need.tokens, own, true, promised)
  end
  if not a then
    if closed and not admitted then return 'stays' end
    for _, account in ipairs(accounts) do
      local taken = promised[account.name] or {0, 0}
      local counted = not account.window or string.find(own.rest, account.name, 1, true)
      promised[account.name] = {taken[1] + need.usd - (counted and own.usd or 0),
        taken[2] + need.tokens - (counted and own.tokens or 0)}
    end
    resume(id, run, scopes)
    return 'woken'
  end
  if not parks(a, kind, f[5], admitted) then
    resume(id, run, scopes)
    return 'woken'
  end
  if kind ~= f[4] or unit ~= f[7] or a.list ~= list then
    redis.call('HSET', run, 'park_kind', kind, 'park_unit', unit, 'park_scope', a.list)
    redis.call('ZADD', P .. 'watch', int(look_at(a, kind, tonumber(f[6]))), id)
  end
  if a.list ~= list then
    enlist(a.list, id, since)
    strike(list, id)
    return 'moved'
  end
  if kind ~= 'wait' then return 'stays' end
  return holds_all_up(a, id, since) and 'blocks' or 'waits'
end

-- Look at some of a list, the longest waiting first. Answers how many were woken and how many stay before the place
-- that was reached, and whether that is the end of the list.
local function wake_list(list, first, count, promised)
  local found = redis.call('ZRANGE', list_key(list), first, first + count - 1, 'WITHSCORES')
  local closed = first > 0 and first_waiting(list) ~= nil
  local woken, stay = 0, 0
  for i = 1, #found, 2 do
    local verdict = look(list, found[i], tonumber(found[i + 1]), promised, closed)
    if verdict == 'blocks' then return woken, first + stay, true end
    if verdict == 'woken' then woken = woken + 1 end
    if verdict == 'stays' or verdict == 'waits' then stay = stay + 1 end
    closed = closed or verdict == 'waits'
  end
  return woken, first + stay, #found < 2 * count
end

-- Money came back to these scopes: the first of each list may go on. The tick looks at the others.
local function wake(scopes)
  local lists = tonumber(redis.call('HGET', LEDGER, 'parked')) or 0
  if lists == 0 then return end
  local promised = {}
  for _, scope in ipairs(scopes) do
    for _, list in ipairs({scope, scope .. '@day', scope .. '@month'}) do
      if redis.call('EXISTS', list_key(list)) == 1 then wake_list(list, 0, WOKEN_AT_ONCE, promised) end
    end
  end
end
