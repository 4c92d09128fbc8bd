-- Pause a batch, or let it go on: a flag that counts at once for all its runs and rows. Runs that a pause holds are let go
-- one by one after that.
--
-- USES  slots feeder
-- KEYS  1 routing key
-- ARGV  1 batch   2 who asked, or '' to let it go on
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
local tenant = redis.call('HGET', batch, 'tenant')
if not tenant then return {'MISSING'} end
if ARGV[2] == '' then
  redis.call('HDEL', batch, 'paused')
  offer(ARGV[1])
  feed(tenant, FED_AT_ONCE)
else
  redis.call('HSETNX', batch, 'paused', ARGV[2])
  rest(ARGV[1], tenant)
end
return {'OK'}
