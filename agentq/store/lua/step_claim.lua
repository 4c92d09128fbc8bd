-- Claim the next step of a queued run: grant a lease, raise the fence, hand over the thread.
-- A running run is never claimed: run_rescue.lua alone brings it back to queued.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 step that the message asks for, or '' for any   3 nonce, also the operation id   4 lease ms
--       5 the last commit whose thread the caller has, or ''
-- REPLY {"ORPHAN"} (a run around it, or its batch, was cancelled: so is this one to be)
--       | {"OK", fence, now, step, phase, ms spent, failures, unclear ones, spec, wind or '',
--         limits or '' [, head, messages, trace, cached results]}
--       (messages and trace as one JSON array each, cached results as names and values; without them when
--       the caller has the thread; wind: the unit and the scope for which it has waited too long; limits: nano-USD and tokens, '-' for
--       none, where somebody has changed those that it was submitted with)
--       | {"RECOVERING"} | {"BUSY"} | {"NOT_YET"} | {"STALE"} | {"CLOSED"} | {"MISSING"}
local id, nonce = ARGV[1], ARGV[3]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'step', 'fence', 'not_before', 'hints', 'started', 'parent', 'batch')
local state, fence = f[1], f[3]
if not state then return {'MISSING'} end
local now = now_ms()
local replay = state == 'running' and fence_nonce(fence) == nonce
if not replay then
  if state == 'running' or state == 'cancelling' then return {'BUSY'} end
  if state ~= 'queued' then return {'CLOSED'} end
  if f[4] and tonumber(f[4]) > now then return {'NOT_YET'} end
  if f[7] then
    for _, ancestor in ipairs(ancestors_in(scopes_in(redis.call('HGET', run, 'scopes')))) do
      local a = redis.call('HMGET', run_key(ancestor), 'state', 'stop_reason')
      if a[1] == 'cancelling' or a[2] == 'cancelled' then return {'ORPHAN'} end
    end
  end
  if f[8] and f[8] ~= '' and redis.call('HEXISTS', P .. 'batch:' .. f[8], 'cancelled') == 1 then return {'ORPHAN'} end
  local recovering = redis.call('HGET', LEDGER, 'recovering')
  if recovering and tonumber(recovering) > now then return {'RECOVERING'} end
  if ARGV[2] ~= '' and ARGV[2] ~= f[2] then return {'STALE'} end
  fence = int(fence_int(fence) + 1) .. '-' .. nonce
  redis.call('HSET', run, 'state', 'running', 'fence', fence, 'claimed', int(now))
  if not f[6] then redis.call('HSET', run, 'started', int(now)) end
  if f[4] or f[5] then redis.call('HDEL', run, 'not_before', 'hints') end
  redis.call('ZADD', P .. 'watch', int(now + tonumber(ARGV[4])), id)
end
local r = redis.call('HMGET', run, 'step', 'phase', 'ms', 'failures', 'unclear', 'spec', 'wind', 'head', 'op',
  'limits')
if ARGV[5] ~= '' and ARGV[5] == r[9] then
  return {'OK', fence, int(now), r[1], r[2], r[3] or '0', r[4] or '0', r[5] or '0', r[6], r[7] or '', r[10] or ''}
end
return {'OK', fence, int(now), r[1], r[2], r[3] or '0', r[4] or '0', r[5] or '0', r[6], r[7] or '', r[10] or '', r[8],
  json_array(redis.call('LRANGE', run .. ':msgs', 0, -1)), json_array(redis.call('LRANGE', run .. ':trace', 0, -1)),
  redis.call('HGETALL', run .. ':cache')}
