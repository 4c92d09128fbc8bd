-- Let a paused run go on. The tick sends its hint.
--
-- USES  ledger reservations fit parking
-- KEYS  1 routing key
-- ARGV  1 run id
-- REPLY {"RESUMED"} (also when it was not paused) | {"HELD", batch} (its batch is paused) | {"ENDED", stop reason} | {"MISSING"}
-- FLAGS allow-oom
local id = ARGV[1]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'stop_reason', 'scopes', 'batch')
if not f[1] then return {'MISSING'} end
if f[1] == 'ended' then return {'ENDED', f[2]} end
redis.call('HDEL', run, 'paused')
if f[1] ~= 'held' then return {'RESUMED'} end
if is_paused(false, f[4]) then return {'HELD', f[4]} end
let_go(id, run, scopes_in(f[3]))
return {'RESUMED'}
