-- Ask for a batch of a schedule now, also of one that is paused. Who asks again before it is made asks for the same one.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule
-- REPLY {"OK", the time of the batch, ms} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local key = schedule_key(ARGV[1])
if redis.call('EXISTS', key) == 0 then return {'MISSING'} end
redis.call('HSETNX', key, 'asked', int(now_ms()))
rank_schedule(ARGV[1])
return {'OK', redis.call('HGET', key, 'asked')}
