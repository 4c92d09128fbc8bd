-- Take on the schedule that is due first, for a while: nobody else makes its batch meanwhile. Who takes on one whose worker
-- has died, or that is tried again, finds the same times in it, and so makes the same batch.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 who claims   2 for how long he need not be heard of, ms
-- REPLY {"NONE"} | {"CLAIMED", schedule, "asked" (by hand) or "due", that time, what it says, rows, part, batch that was made last
--       or '', tries so far, when that time was taken on first}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local now = now_ms()
local name = redis.call('ZRANGEBYSCORE', P .. 'schedules', '-inf', int(now), 'LIMIT', 0, 1)[1]
if not name then return {'NONE'} end
local f = redis.call('HMGET', schedule_key(name), 'asked', 'next', 'spec', 'rows', 'part', 'last', 'tries', 'begun')
if not f[3] then
  redis.call('ZREM', P .. 'schedules', name)
  return {'NONE'}
end
redis.call('ZADD', P .. 'schedules', int(now + tonumber(ARGV[2])), name)
redis.call('HSET', schedule_key(name), 'claim', ARGV[1])
local begun = int(now)
if not f[1] then
  -- Of the times that were missed the last is made: the last of when it was begun, or a second batch would be.
  local due, at = string.match(f[8] or '', '^(%d+) (%d+)$')
  if due == f[2] then begun = at
  else redis.call('HSET', schedule_key(name), 'begun', f[2] .. ' ' .. begun) end
end
return {'CLAIMED', name, f[1] and 'asked' or 'due', f[1] or f[2], f[3], f[4], f[5], f[6] or '', f[7] or '0', begun}
