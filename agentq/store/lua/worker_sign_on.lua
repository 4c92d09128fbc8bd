-- Count a worker process as alive for a while, and compare the number of its reservations with the one that is known: a
-- server that knows less than it has acknowledged was rolled back. The dead leave the list.
--
-- KEYS  1 routing key
-- ARGV  1 worker   2 for how long, in ms   3 process, as it asks for reservations   4 the highest number of its
--       reservations that was acknowledged   5 how many steps it can work on at once
--       6 queue key and message of a hint, `@run@` in place of the run, or '' where a script cannot send one
-- REPLY {"OK"} | {"SCHEMA", version} (the state is newer than this script) | {"ROLLBACK", the highest number of the process that is known}
-- FLAGS allow-oom
local workers, processes, schemas, now = P .. 'workers', P .. 'processes', P .. 'schemas', now_ms()
local schema = tonumber(redis.call('HGET', LEDGER, 'schema') or 0)
if schema > SCHEMA then return {'SCHEMA', int(schema)} end
-- So many have their numbers kept, by when they were last seen. By count and not by age: a clock that jumps, or a
-- process that was frozen for long, must not look like a rollback.
local KEPT = 10000
redis.call('ZADD', workers, int(now + tonumber(ARGV[2])), ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', int(now))) do
  redis.call('HDEL', schemas, gone)
  redis.call('HDEL', P .. 'worker_slots', gone)
end
redis.call('ZREMRANGEBYSCORE', workers, '-inf', int(now))
redis.call('ZADD', processes, int(now), ARGV[3])
for _, gone in ipairs(redis.call('ZRANGE', processes, 0, -KEPT - 1)) do
  redis.call('ZREM', processes, gone)
  redis.call('HDEL', LEDGER, 'op:' .. gone)
end
redis.call('HSET', schemas, ARGV[1], int(SCHEMA))
-- Half as many runs as there are free hands wait in the queue: a worker that is done finds one there.
local slots, feeder = 0, P .. 'feeder'
redis.call('HSET', P .. 'worker_slots', ARGV[1], ARGV[5])
for _, some in ipairs(redis.call('HVALS', P .. 'worker_slots')) do slots = slots + tonumber(some) end
local known = redis.call('HMGET', feeder, 'window', 'hint')
local window = int(math.ceil(1.5 * slots))
if known[1] ~= window then redis.call('HSET', feeder, 'window', window) end
if ARGV[6] == '' and known[2] then redis.call('HDEL', feeder, 'hint')
elseif ARGV[6] ~= '' and known[2] ~= ARGV[6] then redis.call('HSET', feeder, 'hint', ARGV[6]) end
if schema < SCHEMA then
  -- Put into force when nobody is left who would not understand it.
  local oldest = SCHEMA
  for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
    oldest = math.min(oldest, tonumber(redis.call('HGET', schemas, worker) or 0))
  end
  if oldest == SCHEMA then redis.call('HSET', LEDGER, 'schema', int(SCHEMA)) end
end
local known = tonumber(redis.call('HGET', LEDGER, 'op:' .. ARGV[3])) or 0
if known < tonumber(ARGV[4]) then return {'ROLLBACK', int(known)} end
return {'OK'}
