-- Keep a result that is too long for the thread: written when the tool has given it, before the commit of its step, by
-- who holds the run. The same call made again takes its place.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 reference   4 text   5 the most results of a run   6 the most bytes of all of them
-- REPLY {"OK"} | {"FULL"} (the run has too many, or too long ones) | {"STALE"}
local run = run_key(ARGV[1])
local kept = run .. ':kept'
local f = redis.call('HMGET', run, 'state', 'fence')
if f[1] ~= 'running' or f[2] ~= ARGV[2] then return {'STALE'} end
local bytes, count = #ARGV[4], 1
for _, reference in ipairs(redis.call('HKEYS', kept)) do
  if reference ~= ARGV[3] then
    bytes, count = bytes + redis.call('HSTRLEN', kept, reference), count + 1
  end
end
if count > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6]) then return {'FULL'} end
redis.call('HSET', kept, ARGV[3], ARGV[4])
return {'OK'}
