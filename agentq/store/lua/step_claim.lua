-- Claim the next step of a queued run: grant a lease, raise the fence, hand over the thread.
-- A running run is never claimed: run_rescue.lua alone brings it back to queued. One that is paused is held here.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 step that the message asks for, or '' for any   3 nonce, also the operation id   4 lease ms
--       5 the last commit whose thread the caller has, or ''   6 1 when the caller's process may take a suspect, else 0
-- REPLY {"ORPHAN"} (a run around it, or its batch, was cancelled: so is this one to be)
--       | {"OK", fence, now, step, phase, ms spent, failures, unclear ones, spec, wind or '', limits or '',
--         definition or '', 1 when it is a suspect else 0, since when its calls fail (ms) or 0, effects, decisions [, head, messages, trace, cached results]}
--       (messages and trace as one JSON array each, the others as names and values; effects and decisions only where tools
--       come next; without the last four when the caller has the thread; wind: the unit and the scope for which it has
--       waited too long; limits: nano-USD and tokens, '-' for none, where somebody has changed those that it was
--       submitted with)
--       | {"SCHEMA", version} (the state is newer than this script) | {"HELD"} | {"SUSPECT"} (for a process without one)
--       | {"RECOVERING"} | {"BUSY"} | {"NOT_YET"} | {"STALE"} | {"CLOSED"} | {"MISSING"}
-- Two deaths on one step make a run a suspect: of it and its neighbours one may kill its process.
local SUSPECT_DEATHS, SUSPECT_PAUSE_MS = 2, 1000
local function hold_here(id, run)
  -- PART ledger
  -- PART reservations
  -- PART fit
  -- PART slots
  -- PART parking
  hold(id, run, scopes_in(redis.call('HGET', run, 'scopes')))
end
local function taken_after_delay(id, run)
  -- PART slots
  take_slot_again(id, run)
end
local id, nonce = ARGV[1], ARGV[3]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'step', 'fence', 'not_before', 'hints', 'started', 'parent', 'batch', 'deaths',
  'paused')
local state, fence = f[1], f[3]
if not state then return {'MISSING'} end
local now = now_ms()
local l = redis.call('HMGET', LEDGER, 'recovering', 'schema')
if l[2] and tonumber(l[2]) > SCHEMA then return {'SCHEMA', l[2]} end
local is_suspect = (tonumber(f[9]) or 0) >= SUSPECT_DEATHS
local replay = state == 'running' and fence_nonce(fence) == nonce
if not replay then
  if state == 'running' or state == 'cancelling' then return {'BUSY'} end
  if state == 'held' then return {'HELD'} end
  if state ~= 'queued' then return {'CLOSED'} end
  if f[7] and is_orphan(scopes_in(redis.call('HGET', run, 'scopes'))) then return {'ORPHAN'} end
  local paused = f[10]
  if f[8] and f[8] ~= '' then
    local b = redis.call('HMGET', P .. 'batch:' .. f[8], 'cancelled', 'paused')
    if b[1] then return {'ORPHAN'} end
    paused = paused or b[2]
  end
  if paused then
    hold_here(id, run)
    return {'HELD'}
  end
  if f[4] and tonumber(f[4]) > now then return {'NOT_YET'} end
  if l[1] and tonumber(l[1]) > now then return {'RECOVERING'} end
  if ARGV[2] ~= '' and ARGV[2] ~= f[2] then return {'STALE'} end
  if is_suspect and ARGV[6] ~= '1' then
    redis.call('HDEL', run, 'hints')
    redis.call('ZADD', P .. 'watch', int(now + SUSPECT_PAUSE_MS), id)
    return {'SUSPECT'}
  end
  fence = int(fence_int(fence) + 1) .. '-' .. nonce
  redis.call('HSET', run, 'state', 'running', 'fence', fence, 'claimed', int(now))
  if not f[6] then redis.call('HSET', run, 'started', int(now)) end
  if f[4] then taken_after_delay(id, run) end
  if f[4] or f[5] then redis.call('HDEL', run, 'not_before', 'hints') end
  redis.call('ZADD', P .. 'watch', int(now + tonumber(ARGV[4])), id)
end
local r = redis.call('HMGET', run, 'step', 'phase', 'ms', 'failures', 'unclear', 'spec', 'wind', 'head', 'op',
  'limits', 'definition', 'failing')
local effects, decisions = {}, {}
if r[2] == 'tools' then
  effects, decisions = redis.call('HGETALL', run .. ':effects'), redis.call('HGETALL', run .. ':decisions')
end
local reply = {'OK', fence, int(now), r[1], r[2], r[3] or '0', r[4] or '0', r[5] or '0', r[6], r[7] or '', r[10] or '',
  r[11] or '', is_suspect and '1' or '0', r[12] or '0', effects, decisions}
if ARGV[5] == '' or ARGV[5] ~= r[9] then
  reply[#reply + 1] = r[8]
  reply[#reply + 1] = json_array(redis.call('LRANGE', run .. ':msgs', 0, -1))
  reply[#reply + 1] = json_array(redis.call('LRANGE', run .. ':trace', 0, -1))
  reply[#reply + 1] = redis.call('HGETALL', run .. ':cache')
end
return reply
