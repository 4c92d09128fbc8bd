-- Extend a lease that is still held.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 lease ms
-- REPLY {"OK"} | {"CANCELLING"} | {"LOST"}
-- FLAGS allow-oom
local id = ARGV[1]
local f = redis.call('HMGET', run_key(id), 'state', 'fence')
if f[1] == 'running' and f[2] == ARGV[2] then
  redis.call('ZADD', P .. 'watch', int(now_ms() + tonumber(ARGV[3])), id)
  return {'OK'}
end
if f[1] and was_holder(f[1], f[2], ARGV[2]) then return {'CANCELLING'} end
return {'LOST'}
