-- Forget a schedule and its rows. The batches that it has made stay.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local key = schedule_key(ARGV[1])
local part = redis.call('HGET', key, 'part')
if not part then return {'MISSING'} end
redis.call('DEL', key, key .. ':rows:' .. part)
redis.call('ZREM', P .. 'schedules', ARGV[1])
return {'OK'}
