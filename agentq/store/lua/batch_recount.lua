-- Correct counters of a batch, unless anything that it says has changed since its runs were counted.
--
-- KEYS  1 routing key
-- ARGV  1 batch   2 n, then n fields and values of its hash as they were   then count and items: fields and values that are
--         right, 0 for a field that is to go
-- REPLY {"OK"} | {"CHANGED"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
local was, at = take(2)
local right = take(at)
local done = true
for i = 1, #right, 2 do done = done and (redis.call('HGET', batch, right[i]) or '0') == right[i + 1] end
if done then return {'OK'} end
if redis.call('HLEN', batch) * 2 ~= #was then return {'CHANGED'} end
for i = 1, #was, 2 do
  if redis.call('HGET', batch, was[i]) ~= was[i + 1] then return {'CHANGED'} end
end
for i = 1, #right, 2 do
  if right[i + 1] == '0' then redis.call('HDEL', batch, right[i]) else redis.call('HSET', batch, right[i], right[i + 1]) end
end
return {'OK'}
