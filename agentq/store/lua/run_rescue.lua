-- Put one run right that is due in `watch` and not merely queued: take it from a dead worker, let it try again for money,
-- or end it.
-- Whatever the outcome, its due time moves forward, so one stuck run never hides the rest.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 lease ms   3 grace ms   4 how much later a suspect may be claimed, ms
-- REPLY {"RESCUED", step} | {"SUSPECT", step} (it is claimed later, and alone) | {"WOKEN", step} | {"ENDED", stop reason} | {"NOT_DUE"} | {"PATIENT"} | {"GONE"}
-- FLAGS allow-oom
-- Deaths on one step: of a run that is a suspect from then on, and of one that is ended.
local SUSPECT_DEATHS, DEATHS_MAX = 2, 5
local id, lease, grace = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local run, watch = run_key(id), P .. 'watch'
local due = redis.call('ZSCORE', watch, id)
if not due then return {'GONE'} end
local now = now_ms()
if tonumber(due) > now then return {'NOT_DUE'} end
local f = redis.call('HMGET', run, 'state', 'step', 'deaths', 'scopes', 'park_till', 'park_unit', 'park_scope',
  'gathering', 'on_expired')
local state = f[1]
if not state or state == 'ended' then
  redis.call('ZREM', watch, id)
  return {'GONE'}
end
if state == 'queued' or state == 'held' then return {'NOT_DUE'} end
if state == 'parked' then
  -- Its window is new, or it has waited for money as long as any run may: then its closing turn is made.
  if now >= tonumber(f[5]) then redis.call('HSET', run, 'wind', f[6] .. ' ' .. f[7]) end
  resume(id, run, scopes_in(f[4]))
  return {'WOKEN', f[2]}
end
if state == 'waiting' and f[8] then
  -- It has waited for its children as long as it wanted to; the caller sends the hint.
  redis.call('HDEL', run, 'wake_hint')
  go_on(id, run)
  return {'WOKEN', f[2]}
end
if state == 'waiting' and f[9] == 'tell' then
  -- Nobody has decided: the calls are refused, and the model hears why.
  for _, call in ipairs(cjson.decode(redis.call('HGET', run, 'pending'))) do
    redis.call('HSETNX', run .. ':decisions', call.id, cjson.encode({verdict = 'expired', at = int(now)}))
  end
  redis.call('HDEL', run, 'wake_hint')
  decided(id, run)
  return {'WOKEN', f[2]}
end
if state == 'waiting' then
  end_run(id, run, 'approval_expired', now, {})
  return {'ENDED', 'approval_expired'}
end
local till = patience(now, lease)
if till > now then
  redis.call('ZADD', watch, int(till), id)
  return {'PATIENT'}
end
if state == 'cancelling' then
  end_run(id, run, 'cancelled', now, {})
  return {'ENDED', 'cancelled'}
end
local deaths = (tonumber(f[3]) or 0) + 1
redis.call('HINCRBY', run, 'rescues', 1)
local where = place_of(run, state, f[2], redis.call('HGET', run, 'phase'))
trace(run, 'rescued', 'the process was lost in ' .. where, 0, f[2])
-- A run with two deaths is only claimed with no other suspect in its process. Who dies three times like that is taken for
-- what kills it: once may be a kill from outside, or a step beside it that is no suspect yet.
if deaths >= DEATHS_MAX then
  end_run(id, run, 'attempts_exhausted', now, {'deaths', int(deaths), 'stop_detail',
    'the process died ' .. int(deaths) .. ' times in ' .. where})
  return {'ENDED', 'attempts_exhausted'}
end
forfeit_open(id, run, scopes_in(f[4]))
if deaths >= SUSPECT_DEATHS then
  local due = now + tonumber(ARGV[4])
  requeue(id, run, now, due, {'deaths', int(deaths), 'not_before', int(due)})
  delay_slot(id, run)
  return {'SUSPECT', f[2]}
end
requeue(id, run, now, now + grace, {'deaths', int(deaths)})
return {'RESCUED', f[2]}
