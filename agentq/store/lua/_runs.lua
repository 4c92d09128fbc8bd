-- Runs and batches: how they end, and how a step is given back. Needs _base, _ledger, _reservations, _slots and _parking.
local RUN_PARTS = {'', ':msgs', ':trace', ':cache', ':forfeits', ':children', ':gathers', ':effects', ':decisions',
  ':kept'}
local BATCH_PARTS = {'', ':ids', ':runs', ':open', ':delayed', ':done', ':rows', ':feed', ':loading', ':templates', ':dropped:cancelled',
  ':dropped:cost_budget', ':dropped:token_budget'}

-- An account and what the checkpoint says of it come and go together.
local function expire_account(account, ttl)
  if redis.call('PEXPIRE', scope_key(account), ttl) == 0 then
    -- Nothing was booked on it; what comes late must find an end.
    redis.call('HSET', scope_key(account), 'us', '0')
    redis.call('PEXPIRE', scope_key(account), ttl)
  end
  redis.call('PEXPIRE', P .. 'checkpoint:' .. account, ttl)
  if string.sub(account, 1, 6) == 'batch:' then
    for _, window in ipairs({'@day', '@month'}) do redis.call('PEXPIRE', scope_key(account .. window), ttl) end
  end
end

local function persist_account(account)
  redis.call('PERSIST', scope_key(account))
  redis.call('PERSIST', P .. 'checkpoint:' .. account)
  for _, window in ipairs({'@day', '@month'}) do redis.call('PERSIST', scope_key(account .. window)) end
end

-- A batch that was over is not any more.
local function persist_batch(batch)
  local key = P .. 'batch:' .. batch
  for _, part in ipairs(BATCH_PARTS) do redis.call('PERSIST', key .. part) end
  redis.call('PERSIST', P .. 'serial:' .. (redis.call('HGET', key, 'serial') or ''))
  persist_account('batch:' .. batch)
end

-- Rows are being added, perhaps to a batch that was over.
local function unseal(batch)
  redis.call('HDEL', P .. 'batch:' .. batch, 'sealed', 'cancelled')
  persist_batch(batch)
end

-- A batch is over when it is sealed and all its runs are, with all that they have started: from then on its keys have
-- an end.
local function close_batch(batch)
  local key = P .. 'batch:' .. batch
  local f = redis.call('HMGET', key, 'sealed', 'total', 'ended', 'ttl', 'descendants', 'serial')
  if f[1] ~= '1' or (tonumber(f[2]) or 0) > (tonumber(f[3]) or 0) or (tonumber(f[5]) or 0) > 0 then return end
  for _, part in ipairs(BATCH_PARTS) do redis.call('PEXPIRE', key .. part, f[4]) end
  redis.call('PEXPIRE', P .. 'serial:' .. (f[6] or ''), f[4])
  expire_account('batch:' .. batch, f[4])
  -- Whoever wants to be told is told by a worker: once for each time that it is over, and not again when a load has added
  -- nothing. `told` is with how many rows it was over; a retry takes it away.
  local notice = redis.call('HMGET', key, 'notify', 'told')
  if not notice[1] or notice[2] == f[2] then return end
  redis.call('HSET', key, 'told', f[2], 'notice_at', int(now_ms()), 'notice_tries', '0')
  redis.call('HINCRBY', key, 'notice', 1)
  redis.call('HDEL', key, 'notified', 'notify_error')
  redis.call('ZADD', P .. 'notices', int(now_ms()), batch)
end

-- A run is over when it has ended with all that it has started: from then on its keys have an end. Late bills of its
-- descendants are booked on its account, so that must not go before theirs do.
local function close_run(id)
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'descendants', 'ttl', 'batch', 'tenant', 'custom_id', 'parent')
  if f[1] ~= 'ended' or (tonumber(f[2]) or 0) > 0 then return end
  for _, part in ipairs(RUN_PARTS) do redis.call('PEXPIRE', run .. part, f[3]) end
  expire_account('run:' .. id, f[3])
  if f[4] == '' and f[6] ~= '' and not f[7] then redis.call('PEXPIRE', P .. 'ids:' .. f[5] .. ':' .. f[6], f[3]) end
end

-- Leave `waiting` because the children that the run waited for have ended, or the time for that is over: its tools are
-- called again.
local function go_on(id, run)
  mark_idle(run, scopes_in(redis.call('HGET', run, 'scopes')), -1)
  redis.call('DEL', run .. ':awaits')
  redis.call('HDEL', run, 'gathering', 'deadline')
  queue_at_once(id, run)
end

-- A child comes to live (1) or has ended (-1): all that is around it must outlive it.
local function count_descendant(id, scopes, change)
  for _, ancestor in ipairs(ancestors_in(scopes)) do
    local left = redis.call('HINCRBY', run_key(ancestor), 'descendants', change)
    if left == 0 then close_run(ancestor) end
  end
  for _, scope in ipairs(scopes) do
    local batch = string.match(scope, '^batch:(.*)$')
    if batch and redis.call('HINCRBY', P .. 'batch:' .. batch, 'descendants', change) == 0 then close_batch(batch) end
  end
end

-- A child has ended: its parent goes on when it was the last that it waited for.
local function tell_parent(parent, id)
  local run = run_key(parent)
  if redis.call('SREM', run .. ':awaits', id) == 1 and redis.call('EXISTS', run .. ':awaits') == 0 then
    go_on(parent, run)
  end
end

-- What a run of a batch has really needed goes to its tenant's virtual time, and into the mean that the next are charged.
local function settle_turn(id, run, tenant, batch, charged)
  -- PART feeder
  local used, key = tonumber(redis.call('HGET', scope_key('run:' .. id), 'ts')) or 0, P .. 'batch:' .. batch
  used = math.max(used, LEAST_CHARGE)
  charge(tenant, batch, used - charged)
  local mean = tonumber(redis.call('HGET', key, 'mean')) or used
  redis.call('HSET', key, 'mean', int(math.floor(mean + (used - mean) / MEAN_OF)))
  redis.call('HDEL', run, 'turn')
end

-- End a run: money closed, counters moved, every key given an end. `fields` are set beside the reason.
local function end_run(id, run, reason, now, fields)
  local f = redis.call('HMGET', run, 'fence', 'batch', 'parent', 'claimed', 'ms', 'state', 'scopes', 'turn', 'tenant')
  local scopes = scopes_in(f[7])
  if f[6] == 'parked' then unpark(id, run, scopes)
  elseif f[6] == 'waiting' or f[6] == 'held' then mark_idle(run, scopes, -1) end
  redis.call('ZREM', P .. 'inbox', id)
  forfeit_open(id, run, scopes)
  release_escrow(id, run, scopes)
  redis.call('DEL', run .. ':open', run .. ':awaits')
  local spent = tonumber(f[5]) or 0
  if f[4] and (f[6] == 'running' or f[6] == 'cancelling') then spent = spent + math.max(0, now - tonumber(f[4])) end
  redis.call('HSET', run, 'state', 'ended', 'stop_reason', reason, 'ended', int(now), 'fence', raised(f[1]),
    'ms', int(spent), unpack(fields))
  redis.call('HDEL', run, 'pending', 'deadline', 'not_before', 'hints', 'parked', 'wind', 'gathering', 'wake_hint',
    'paused', 'on_expired')
  redis.call('ZREM', P .. 'watch', id)
  close_run(id)
  if f[2] and f[2] ~= '' then
    -- PART counters
    local batch = P .. 'batch:' .. f[2]
    redis.call('SREM', batch .. ':open', id)
    redis.call('RPUSH', batch .. ':done', id)
    redis.call('HINCRBY', batch, 'ended', 1)
    redis.call('HINCRBY', batch, 'stop:' .. reason, 1)
    count(id, run, batch, reason)
    close_batch(f[2])
  end
  if f[3] then
    count_descendant(id, scopes, -1)
    tell_parent(f[3], id)
  end
  wake(scopes)
  if f[8] then settle_turn(id, run, f[9], f[2], tonumber(f[8])) end
  return_slot(id, run)
end

-- Why a worker may not go on with a run that it once claimed, or nil when it may. The holder of a run that
-- is being cancelled ends it here: its bill is booked, and nobody waits for its lease.
local function refusal(id, run, state, current, mine, op, now)
  if state == 'running' and current == mine then return nil end
  if not was_holder(state, current, mine) then return {'STALE'} end
  end_run(id, run, 'cancelled', now, {'op', op})
  return {'CANCELLED'}
end

-- Leave `running` for another live state: the fence is raised, the time inside the step is added up.
local function leave(id, run, state, now, due, fields)
  local f = redis.call('HMGET', run, 'fence', 'claimed', 'ms')
  local spent = (tonumber(f[3]) or 0) + math.max(0, now - (tonumber(f[2]) or now))
  redis.call('HSET', run, 'state', state, 'fence', raised(f[1]), 'ms', int(spent), unpack(fields))
  redis.call('ZADD', P .. 'watch', int(due), id)
  if state ~= 'queued' then return_slot(id, run) end
end

-- Back to `queued`: anyone may claim the run from now on, or from `due` when it is delayed.
local function requeue(id, run, now, due, fields) leave(id, run, 'queued', now, due, fields) end

-- Leave `waiting` because a person has decided, or the time for that is over: the calls that may be made are made.
local function decided(id, run)
  mark_idle(run, scopes_in(redis.call('HGET', run, 'scopes')), -1)
  redis.call('ZREM', P .. 'inbox', id)
  redis.call('HDEL', run, 'deadline', 'pending', 'on_expired')
  queue_at_once(id, run)
end

-- The results that a commit has taken into the thread leave the journal. What has begun and is not known to be done stays:
-- what comes late is still a fact.
local function forget_done(run)
  local journal = redis.call('HGETALL', run .. ':effects')
  for i = 2, #journal, 2 do
    if string.sub(journal[i], 1, 5) == 'done ' then redis.call('HDEL', run .. ':effects', journal[i - 1]) end
  end
end

-- What a run is at, for people: the step is counted from 1, as in its thread.
local function place_of(run, state, step, phase)
  local at = 'step ' .. int(tonumber(step) + 1)
  if state == 'waiting' then return at .. ', waiting' end
  if state ~= 'running' and state ~= 'cancelling' then return 'before ' .. at end
  if phase ~= 'tools' then return at .. ', in its model call' end
  for _, text in ipairs(redis.call('HVALS', run .. ':effects')) do
    local of, tool = string.match(text, '^started %S+ (%d+) (.*):%x+$')
    if of == step then return at .. ', in ' .. tool end
  end
  return at .. ', in its tools'
end

-- After an outage nobody is rescued too early: a gap since the last tick, or time going back, gives
-- every lease one full term to be renewed first, at most once in three terms; but always when the gap was longer than a
-- term, since no lease can have been renewed meanwhile. Answers until when. The first tick of all follows no gap.
-- A gap is a third of a lease without a tick, as long as a heartbeat may take: 5 s by default, never under 1.5 s.
local function patience(now, lease_ms)
  local gap_ms = math.min(5000, math.max(1500, lease_ms / 3))
  local f = redis.call('HMGET', P .. 'clock', 'tick', 'patience', 'granted')
  local tick, till, granted = tonumber(f[1]) or 0, tonumber(f[2]) or 0, tonumber(f[3]) or 0
  local gap = f[1] and (now - tick > gap_ms or now < tick)
  if gap and (now > granted + 3 * lease_ms or now < granted or now - tick > lease_ms) then
    till = now + lease_ms
    redis.call('HSET', P .. 'clock', 'tick', int(now), 'patience', int(till), 'granted', int(now))
  elseif now - tick >= 500 or now < tick then
    redis.call('HSET', P .. 'clock', 'tick', int(now))
  end
  return till
end

