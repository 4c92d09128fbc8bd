-- Change how a batch is fed: at once, whatever its size.
--
-- USES  slots feeder
-- KEYS  1 routing key
-- ARGV  1 batch   2 n, then n fields and values: max_in_flight, max_open, priority, at; '' takes one away
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
local tenant = redis.call('HGET', batch, 'tenant')
if not tenant then return {'MISSING'} end
local fields = take(2)
local old = tonumber(redis.call('HGET', batch, 'priority')) or 0
for i = 1, #fields, 2 do
  if fields[i + 1] == '' then redis.call('HDEL', batch, fields[i])
  else redis.call('HSET', batch, fields[i], fields[i + 1]) end
end
local new = tonumber(redis.call('HGET', batch, 'priority')) or 0
redis.call('ZADD', P .. 'turns:' .. tenant, 'XX', 'INCR', int((old - new) * PRIORITY_STEP), ARGV[1])
redis.call('ZREM', P .. 'starts', ARGV[1])
offer(ARGV[1])
feed(tenant, FED_AT_ONCE)
return {'OK'}
