-- Leave the hint of a parked run's step with it, for the script that lets it go on.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence under which it was parked   3 grace ms until a lost message is sent again   4 queue key
--       5 message
-- REPLY {"OK"} | {"STALE"} (it is parked no longer, or again)
local run = run_key(ARGV[1])
local f = redis.call('HMGET', run, 'state', 'fence')
if f[1] ~= 'parked' or f[2] ~= raised(ARGV[2]) then return {'STALE'} end
redis.call('HSET', run, 'wake_hint', ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[5])
return {'OK'}
