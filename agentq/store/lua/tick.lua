-- List the runs that somebody must look at now, and remember when this was last done.
--
-- KEYS  1 routing key
-- ARGV  1 lease ms   2 the most to list
-- REPLY {run, run, …}
-- FLAGS allow-oom
local now = now_ms()
patience(now, tonumber(ARGV[1]))
return redis.call('ZRANGEBYSCORE', P .. 'watch', '-inf', int(now), 'LIMIT', 0, ARGV[2])
