-- Give a claim on a schedule back: its batch was made, or was not to be, or is to be tried again.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule   2 who has claimed it   3 "asked" or "due", as it was claimed   4 the time that the batch is of, ms
--       5 the batch, or '' when none was made   6 what came of it, a word   7 more about it, or ''   8 its next time, ms, or ''
--       for never; of one that was asked for it stays   9 when to try the same again, in ms, or '' for what is settled
-- REPLY {"OK"} | {"LOST"} (somebody else has it by now, or it is gone)
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local name, key = ARGV[1], schedule_key(ARGV[1])
if redis.call('HGET', key, 'claim') ~= ARGV[2] then return {'LOST'} end
local now = now_ms()
redis.call('HSET', key, 'outcome', ARGV[6], 'detail', ARGV[7], 'done', int(now))
redis.call('HDEL', key, 'claim')
if ARGV[9] ~= '' then
  redis.call('HINCRBY', key, 'tries', 1)
  rank_schedule(name)
  -- One that was paused meanwhile is not tried again before it is resumed.
  if redis.call('ZSCORE', P .. 'schedules', name) ~= 'inf' then
    redis.call('ZADD', P .. 'schedules', int(now + tonumber(ARGV[9])), name)
  end
  return {'OK'}
end
redis.call('HDEL', key, 'tries')
if ARGV[3] == 'asked' then redis.call('HDEL', key, 'asked')
elseif ARGV[8] == '' then redis.call('HDEL', key, 'next')
else redis.call('HSET', key, 'next', ARGV[8]) end
if ARGV[5] ~= '' then
  redis.call('HSET', key, 'last', ARGV[5], 'last_at', ARGV[4])
  redis.call('HINCRBY', key, 'made', 1)
end
if ARGV[7] ~= '' then
  announce({event = 'schedule_' .. ARGV[6], schedule = name, time = ARGV[4], batch = ARGV[5], detail = ARGV[7]})
end
rank_schedule(name)
return {'OK'}
