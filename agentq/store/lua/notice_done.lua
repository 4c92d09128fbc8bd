-- Say what came of a notice: it was received, or is to be tried again, or is given up.
--
-- KEYS  1 routing key
-- ARGV  1 batch   2 number of the notice   3 tries before this one   4 what went wrong, or ''
--       5 when to try again, in ms, or '' for never
-- REPLY {"OK"} | {"STALE"} (it is another notice by now, or somebody else has tried it)
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local key, now = P .. 'batch:' .. ARGV[1], now_ms()
local f = redis.call('HMGET', key, 'notice', 'notice_tries', 'notified')
if f[1] ~= ARGV[2] then return {'STALE'} end
if ARGV[4] == '' then
  redis.call('ZREM', P .. 'notices', ARGV[1])
  if not f[3] then redis.call('HSET', key, 'notified', int(now)) end
  redis.call('HDEL', key, 'notify_error')
  return {'OK'}
end
if f[3] or f[2] ~= ARGV[3] then return {'STALE'} end
redis.call('HINCRBY', key, 'notice_tries', 1)
redis.call('HSET', key, 'notify_error', (ARGV[5] == '' and 'given up: ' or '') .. ARGV[4])
if ARGV[5] ~= '' then
  redis.call('ZADD', P .. 'notices', 'XX', int(now + tonumber(ARGV[5])), ARGV[1])
else
  redis.call('ZREM', P .. 'notices', ARGV[1])
  announce({event = 'notice_given_up', batch = ARGV[1], detail = ARGV[4]})
end
return {'OK'}
