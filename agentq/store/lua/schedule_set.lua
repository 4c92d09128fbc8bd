-- Keep a new schedule, whose rows are there already. One that is the same is left alone.
--
-- USES  schedules
-- KEYS  1 routing key
-- ARGV  1 schedule   2 what it says, JSON   3 hash of that and of its rows   4 how many rows   5 their bytes as stored
--       6 the part that has them   7 how many chunks that are   8 its first time, ms
-- REPLY {"SET", first time} | {"SAME", next time, or ''} | {"CONFLICT"} (it is there and is another) | {"LOST"} (the part is not whole)
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local name, key = ARGV[1], schedule_key(ARGV[1])
local rows = key .. ':rows:' .. ARGV[6]
local f = redis.call('HMGET', key, 'hash', 'part', 'next')
if f[2] == ARGV[6] then return {'SET', f[3]} end
if f[1] then
  redis.call('DEL', rows)
  if f[1] == ARGV[3] then return {'SAME', f[3] or ''} end
  return {'CONFLICT'}
end
if redis.call('LLEN', rows) ~= tonumber(ARGV[7]) then return {'LOST'} end
redis.call('PERSIST', rows)
redis.call('HSET', key, 'spec', ARGV[2], 'hash', ARGV[3], 'rows', ARGV[4], 'bytes', ARGV[5], 'part', ARGV[6],
  'created', int(now_ms()), 'next', ARGV[8])
rank_schedule(name)
return {'SET', ARGV[8]}
