-- Say that a claim on a schedule is still worked on.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule   2 who has claimed it   3 for how long he need not be heard of, ms
-- REPLY {"OK"} | {"LOST"} (somebody else has it by now, or it is gone)
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
if redis.call('HGET', schedule_key(ARGV[1]), 'claim') ~= ARGV[2] then return {'LOST'} end
redis.call('ZADD', P .. 'schedules', int(now_ms() + tonumber(ARGV[3])), ARGV[1])
return {'OK'}
