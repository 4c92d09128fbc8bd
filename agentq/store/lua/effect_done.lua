-- Say what a call with a side effect has given: a fact, taken from the attempt that began it, whatever the fence, once.
-- One that comes when its attempt does not hold the step any more, or after its time was over, is written into the trace
-- and answers equal calls from now on: whoever is at the step may have told the model already that nobody knows.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence under which it began   3 call id   4 step   5 signature   6 result
--       7 trace event for a late one   8 1 when its time was over, else 0
--       9 the content that answers equal calls of the run: count 0 or 1, and it
-- REPLY {"OK"} | {"LATE"} | {"GONE"} (somebody else began it again, or it is known already) | {"MISSING"}
-- FLAGS allow-oom
local id, fence, call, step, signature = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local run = run_key(id)
local journal = run .. ':effects'
local f = redis.call('HMGET', run, 'state', 'step', 'fence')
if not f[1] then return {'MISSING'} end
local opened = fence .. ' ' .. step .. ' ' .. signature
local intent, done = 'started ' .. opened, 'done ' .. opened .. ' ' .. ARGV[6]
local known = redis.call('HGET', journal, call)
if known ~= intent and known ~= done then return {'GONE'} end
local at_hand = f[1] == 'running' and f[2] == step and f[3] == fence and ARGV[8] == '0'
local word = (at_hand or ARGV[6] == 'again') and 'OK' or 'LATE'
if known == done then return {word} end
redis.call('HSET', journal, call, done)
if word == 'OK' then return {'OK'} end
redis.call('RPUSH', run .. ':trace', ARGV[7])
local content = take(9)
if content[1] then redis.call('HSET', run .. ':cache', signature, content[1]) end
local ttl = redis.call('PTTL', run)
if ttl > 0 then
  for _, part in ipairs({':trace', ':cache'}) do redis.call('PEXPIRE', run .. part, ttl) end
end
return {'LATE'}
