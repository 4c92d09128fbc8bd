-- Say that a batch is cancelled: from now on none of its runs is claimed. Its runs are cancelled one by one after that.
--
-- KEYS  1 routing key
-- ARGV  1 batch   2 who asked
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
redis.call('HSET', batch, 'cancelled', ARGV[2])
return {'OK'}
