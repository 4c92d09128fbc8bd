-- Count a worker process as alive for a while. The dead leave the list.
--
-- KEYS  1 routing key
-- ARGV  1 worker   2 for how long, in ms
-- REPLY {"OK"}
-- FLAGS allow-oom
local workers, now = P .. 'workers', now_ms()
redis.call('ZADD', workers, int(now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', workers, '-inf', int(now))
return {'OK'}
