-- How a run is cancelled. Needs _base, _ledger, _reservations, _fit, _parking and _runs.

-- Whether it was a row, which is a run now; or why it ended without becoming one.
local function was_row(id)
  -- PART feeder
  return run_of_row(id), dropped_as(id)
end

local function cancelled(id, by)
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'fence', 'stop_reason', 'step', 'phase', 'stopped_at')
  if not f[1] then
    local begun, dropped = was_row(id)
    if begun then f = redis.call('HMGET', run, 'state', 'fence', 'stop_reason', 'step', 'phase', 'stopped_at')
    elseif dropped then f = {'ended', false, dropped} end
  end
  local state, fence = f[1], f[2]
  if not state then return {'MISSING'} end
  if state == 'ended' then
    if f[3] == 'cancelled' then return {'CANCELLED'} end
    return {'ENDED', f[3]}
  end
  if state == 'cancelling' then return {'CANCELLING', f[6] or ''} end
  local where = place_of(run, state, f[4], f[5])
  trace(run, 'cancelled', by .. ', ' .. where, 1, f[4])
  if state == 'running' then
    redis.call('HSET', run, 'state', 'cancelling', 'stop_detail', by, 'stopped_at', where,
      'fence', int(fence_int(fence) + 1) .. '-' .. fence_nonce(fence))
    return {'CANCELLING', where}
  end
  end_run(id, run, 'cancelled', now_ms(), {'stop_detail', by, 'stopped_at', where})
  return {'CANCELLED'}
end
