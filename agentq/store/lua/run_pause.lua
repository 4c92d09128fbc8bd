-- Pause a run: nothing of it is started any more. A step at work is finished first; a run that waits goes on waiting and
-- is held when it could go on.
--
-- USES  ledger reservations fit slots parking
-- KEYS  1 routing key
-- ARGV  1 run id   2 who asked
-- REPLY {"HELD"} | {"PAUSING", state} (held as soon as it is queued) | {"ENDED", stop reason} | {"CANCELLING"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local id = ARGV[1]
local run = run_key(id)
local function ended_as_row()
  -- PART feeder
  if not run_of_row(id) then return dropped_as(id) end
end
local dropped = redis.call('EXISTS', run) == 0 and ended_as_row()
if dropped then return {'ENDED', dropped} end
local f = redis.call('HMGET', run, 'state', 'stop_reason', 'scopes')
local state = f[1]
if not state then return {'MISSING'} end
if state == 'ended' then return {'ENDED', f[2]} end
if state == 'cancelling' then return {'CANCELLING'} end
redis.call('HSETNX', run, 'paused', ARGV[2])
if state == 'held' then return {'HELD'} end
if state ~= 'queued' then return {'PAUSING', state} end
hold(id, run, scopes_in(f[3]))
return {'HELD'}
