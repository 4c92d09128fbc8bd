-- Leave the hint of a parked run's step with it, for the script that lets it go on; if one has done so meanwhile, send it.
--
-- USES  slots
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence under which it was parked   3 grace ms until a lost message is sent again   4 queue key
--       5 message
-- REPLY {"OK"} | {"SENT"} | {"STALE"} (it is past that: a hint was sent, or it is parked again)
local run = run_key(ARGV[1])
local f = redis.call('HMGET', run, 'state', 'fence', 'not_before', 'hints')
if f[2] ~= raised(ARGV[2]) then return {'STALE'} end
if f[1] == 'queued' and f[3] and not f[4] then
  redis.call('HDEL', run, 'not_before')
  push_hint(ARGV[4], ARGV[5], redis.call('HGET', run, 'tenant'))
  redis.call('ZADD', P .. 'watch', int(now_ms() + tonumber(ARGV[3])), ARGV[1])
  return {'SENT'}
end
if f[1] ~= 'parked' then return {'STALE'} end
redis.call('HSET', run, 'wake_hint', ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[5])
return {'OK'}
