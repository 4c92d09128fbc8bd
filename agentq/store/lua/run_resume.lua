-- Let a paused run go on. The tick sends its hint. Its own pause and its batch's are two: it goes on when neither holds it.
--
-- USES  ledger reservations fit slots parking feeder
-- KEYS  1 routing key
-- ARGV  1 run id   2 1 to take back its own pause, 0 when its batch's was taken back
-- REPLY {"RESUMED"} (also when it was not paused, or is a row) | {"HELD", what is paused: run or batch} | {"ENDED", stop reason}
--       | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local id = ARGV[1]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'stop_reason', 'scopes', 'batch', 'paused')
if not f[1] then
  local dropped = dropped_as(id)
  if dropped then return {'ENDED', dropped} end
  local batch = batch_of_row(id)
  if batch and redis.call('HEXISTS', rows_of(batch), id) == 1 then return {'RESUMED'} end
  return {'MISSING'}
end
if f[1] == 'ended' then return {'ENDED', f[2]} end
if is_paused(false, f[4]) then return {'HELD', 'batch'} end
if ARGV[2] == '1' then redis.call('HDEL', run, 'paused')
elseif f[5] then return {'HELD', 'run'} end
if f[1] ~= 'held' then return {'RESUMED'} end
let_go(id, run, scopes_in(f[3]))
return {'RESUMED'}
