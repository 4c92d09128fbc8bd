-- Count a worker process as alive for a while, and compare its operation numbers with those that are known: a server that
-- knows less than it has acknowledged was rolled back. The dead leave the list.
--
-- KEYS  1 routing key
-- ARGV  1 worker   2 for how long, in ms   3 process, as it asks for reservations   4 its highest operation number that was
--       acknowledged
-- REPLY {"OK", when the ledger was opened, or ''} | {"ROLLBACK", the operation number that is known}
-- FLAGS allow-oom
local workers, processes, now = P .. 'workers', P .. 'processes', now_ms()
local mine = 'op:' .. ARGV[3]
redis.call('ZADD', workers, int(now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', workers, '-inf', int(now))
redis.call('ZADD', processes, int(now), ARGV[3])
-- A process that was frozen for a day must begin anew; see `store/operations.py`.
for _, gone in ipairs(redis.call('ZRANGE', processes, '-inf', int(now - 86400000), 'BYSCORE', 'LIMIT', 0, 100)) do
  redis.call('ZREM', processes, gone)
  redis.call('HDEL', LEDGER, 'op:' .. gone)
end
local l = redis.call('HMGET', LEDGER, 'born', mine)
local known = tonumber(l[2]) or 0
if known < tonumber(ARGV[4]) then return {'ROLLBACK', int(known)} end
return {'OK', l[1] or ''}
