-- Pause a batch, or let it go on: a flag that counts at once for all its runs. Those that a pause holds are let go one by
-- one after that.
--
-- KEYS  1 routing key
-- ARGV  1 batch   2 who asked, or '' to let it go on
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
if ARGV[2] == '' then redis.call('HDEL', batch, 'paused') else redis.call('HSETNX', batch, 'paused', ARGV[2]) end
return {'OK'}
