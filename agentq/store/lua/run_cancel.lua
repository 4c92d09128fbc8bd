-- Cancel a run: at once when no worker holds it, else by raising the fence over the holder, which then
-- can book what it spent and nothing more. Where it stopped is kept.
--
-- USES  ledger reservations fit parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 who asked
-- REPLY {"CANCELLED"} | {"CANCELLING", where} | {"ENDED", stop reason} | {"MISSING"}
-- FLAGS allow-oom
local id = ARGV[1]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'stop_reason', 'step', 'phase', 'stopped_at')
local state, fence = f[1], f[2]
if not state then return {'MISSING'} end
if state == 'ended' then
  if f[3] == 'cancelled' then return {'CANCELLED'} end
  return {'ENDED', f[3]}
end
if state == 'cancelling' then return {'CANCELLING', f[6] or ''} end
local where = place_of(run, state, f[4], f[5])
if state == 'running' then
  redis.call('HSET', run, 'state', 'cancelling', 'stop_detail', ARGV[2], 'stopped_at', where,
    'fence', int(fence_int(fence) + 1) .. '-' .. fence_nonce(fence))
  return {'CANCELLING', where}
end
end_run(id, run, 'cancelled', now_ms(), {'stop_detail', ARGV[2], 'stopped_at', where})
return {'CANCELLED'}
