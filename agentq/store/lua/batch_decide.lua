-- Decide about a batch whose pilot is over, once: its other rows are admitted, or it is paused for a person to say so.
--
-- USES  slots feeder pilots
-- KEYS  1 routing key
-- ARGV  1 batch   2 how many rows had ended when the caller looked   3 why it is paused, or '' to go on
-- REPLY {"OK"} | {"CHANGED"} (its pilot is not over, or it has been decided about, or other rows have ended)
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local name = ARGV[1]
local batch = P .. 'batch:' .. name
local f = redis.call('HMGET', batch, 'tenant', 'ended')
if not pilot_is_over(name) or f[2] ~= ARGV[2] then return {'CHANGED'} end
redis.call('HDEL', batch, 'pilot')
redis.call('SREM', P .. 'pilots', name)
if ARGV[3] == '' then
  offer(name)
  feed(f[1], FED_AT_ONCE)
elseif redis.call('EXISTS', feed_of(name)) == 1 then
  redis.call('HSET', batch, 'paused', ARGV[3])
end
return {'OK'}
