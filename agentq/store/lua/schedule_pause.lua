-- Let a schedule make no batch by itself until it is resumed; or resume it, with its next time. A batch that is being made
-- is made whole: then the time that it is of stays the next one until that is done.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule   2 who pauses it, '' to resume it   3 its next time when it is resumed, ms, or '' for never
-- REPLY {"OK"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local key = schedule_key(ARGV[1])
if redis.call('EXISTS', key) == 0 then return {'MISSING'} end
if ARGV[2] ~= '' then
  redis.call('HSETNX', key, 'paused', ARGV[2])
elseif redis.call('HDEL', key, 'paused') == 1 then
  local f = redis.call('HMGET', key, 'claim', 'begun', 'next', 'outcome')
  if not (f[1] and f[3] and string.match(f[2] or '', '^(%d+)') == f[3]) then
    if ARGV[3] == '' then redis.call('HDEL', key, 'next') else redis.call('HSET', key, 'next', ARGV[3]) end
    redis.call('HDEL', key, 'tries')
    if f[4] == 'retry' then redis.call('HSET', key, 'outcome', 'failed') end
  end
end
rank_schedule(ARGV[1])
return {'OK'}
