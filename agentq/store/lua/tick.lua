-- What is due now: hints to send again for queued runs, and runs that somebody must put right.
-- A queued run is looked at and moved forward here, also where this worker has no room for it, so that
-- a long queue neither hides the runs of dead workers nor fills with doubles.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 lease ms   2 the most runs to look at   3 hints to send again at most: the room that this worker has
--       4 the most runs to put right   5 grace ms   6 longest grace ms
-- REPLY {"SCHEMA", version} (the state is newer than this script) | {{run, step, run, step, …}, {run, run, …}, {some of the scopes in which runs are parked}, {events to be logged},
--       {batches whose pilot is over}}
-- FLAGS allow-oom
local room, rescues = tonumber(ARGV[3]), tonumber(ARGV[4])
local grace, longest = tonumber(ARGV[5]), tonumber(ARGV[6])
local now, watch = now_ms(), P .. 'watch'
-- So many lists of parked runs are swept in one tick, any of them: each costs every worker a script.
local LISTS_MAX = 100
-- Batches that start, tenants that are looked at, rows that are admitted, and pilots that are looked at in one tick.
local STARTS_MAX, IDLE_LOOKS, FED_MAX, PILOTS_MAX = 100, 20, 100, 20
-- Slots that one tick looks at, any of them: a worker of a release that knew none does not give them back.
local SLOTS_LOOKED_AT = 10
local newer = too_new()
if newer then return newer end
patience(now, tonumber(ARGV[1]))
-- In a function, since a script may have 200 names at most.
local pilots = {}
local function admit()
  -- PART feeder
  -- Batches whose time has come, and tenants with nothing in flight, whom nobody else's end has fed.
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', P .. 'starts', '-inf', int(now), 'LIMIT', 0, STARTS_MAX)) do
    redis.call('ZREM', P .. 'starts', batch)
    offer(batch)
  end
  for _, id in ipairs(redis.call('SRANDMEMBER', P .. 'slots', SLOTS_LOOKED_AT)) do
    local state = redis.call('HGET', run_key(id), 'state')
    if state and state ~= 'queued' and state ~= 'running' and state ~= 'cancelling' then return_slot(id, run_key(id)) end
  end
  for _, tenant in ipairs(redis.call('ZRANGE', P .. 'turns', 0, IDLE_LOOKS - 1)) do feed(tenant, 0) end
  feed(nil, FED_MAX)
  for _, batch in ipairs(redis.call('SRANDMEMBER', P .. 'pilots', PILOTS_MAX)) do
    -- PART pilots
    if pilot_is_over(batch) then pilots[#pilots + 1] = batch
    elseif redis.call('HEXISTS', P .. 'batch:' .. batch, 'pilot') == 0 then redis.call('SREM', P .. 'pilots', batch) end
  end
end
admit()
-- While the ledger recovers nothing is claimed: all that is queued is due again when that is over.
local recovering = tonumber(redis.call('HGET', LEDGER, 'recovering') or 0)
local hints, due = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', watch, '-inf', int(now), 'LIMIT', 0, ARGV[2])) do
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'step', 'hints', 'not_before')
  if f[1] == 'held' then
    -- Who resumed its batch, or cancelled that or a run around it, may not have come to this run.
    local h = redis.call('HMGET', run, 'paused', 'batch', 'scopes')
    local scopes = scopes_in(h[3])
    local cancelled = is_orphan(scopes) or h[2] ~= '' and redis.call('HEXISTS', P .. 'batch:' .. h[2], 'cancelled') == 1
    if is_paused(h[1], h[2]) and not cancelled then
      redis.call('ZADD', watch, int(now + HELD_LOOK_MS), id)
    else
      let_go(id, run, scopes)
      -- Its first hint goes out here, unless it is delayed: then it is due when that is over.
      local delayed = tonumber(f[4] or 0) > now
      f = redis.call('HMGET', run, 'state', 'step', 'hints', 'not_before')
      if delayed then f[1] = 'held' end
    end
  end
  if f[1] == 'queued' and recovering > now then
    redis.call('ZADD', watch, int(recovering), id)
  elseif f[1] == 'queued' then
    -- The message may be lost, or only late: send it again, ever more rarely. After a delay there was
    -- no message yet: the first is due whatever the room, or it would wait until no worker is full.
    local sent = tonumber(f[3]) or 0
    if #hints < 2 * room or (f[4] and sent == 0) then
      hints[#hints + 1] = id
      hints[#hints + 1] = f[2]
      if f[4] and sent == 0 then take_slot_again(id, run) end
      sent = sent + 1
      redis.call('HSET', run, 'hints', int(sent))
    end
    redis.call('ZADD', watch, int(now + math.min(longest, grace * 2 ^ math.min(sent, 30))), id)
  elseif f[1] ~= 'held' and #due < rescues then
    due[#due + 1] = id
  end
end
local lists = (tonumber(redis.call('HGET', LEDGER, 'parked')) or 0) > 0 and redis.call('SRANDMEMBER', P .. 'parked', LISTS_MAX) or {}
return {hints, due, lists, redis.call('LPOP', P .. 'events', 20) or {}, pilots}
