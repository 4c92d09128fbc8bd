-- Say that a call with a side effect begins: a decision, for who holds the run. What is known to have been done, or may
-- have been, is not done again.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 call id   4 step   5 signature of what is executed
--       6 once (an equal call of the run answers for it) or again (it may act each time)
--       7 retry when the call may be made although it may have acted, else ''
--       8 results of the reads before it, kept with it: count and items, call id and result
-- REPLY {"GO"} | {"DONE", result} | {"CACHED", content} | {"UNKNOWN"} (it began and was not said to be done)
--       | {"STALE"} | {"CANCELLED"}
local id, fence, call, step, signature = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local run = run_key(id)
local journal = run .. ':effects'
local f = redis.call('HMGET', run, 'state', 'fence')
if f[1] ~= 'running' or f[2] ~= fence then
  if f[1] and was_holder(f[1], f[2], fence) then return {'CANCELLED'} end
  return {'STALE'}
end
local kept = take(8)
for i = 1, #kept, 2 do redis.call('HSET', journal, kept[i], 'done ' .. fence .. ' ' .. step .. ' - ' .. kept[i + 1]) end
if ARGV[6] == 'once' then
  local content = redis.call('HGET', run .. ':cache', signature)
  if content then return {'CACHED', content} end
end
local intent = 'started ' .. fence .. ' ' .. step .. ' ' .. signature
local known = redis.call('HGET', journal, call)
if known then
  local result = string.match(known, '^done %S+ %d+ %S+ (.*)$')
  -- `again`: it waited for children and has acted as far as it will; it is made again from its start.
  if result and result ~= 'again' then return {'DONE', result} end
  if known == intent then return {'GO'} end
  if not result and ARGV[7] ~= 'retry' then return {'UNKNOWN'} end
elseif ARGV[6] == 'once' and ARGV[7] ~= 'retry' then
  -- An equal call of the same step of which nobody knows the outcome speaks for this one too.
  for _, text in ipairs(redis.call('HVALS', journal)) do
    local of, what = string.match(text, '^started %S+ (%d+) (.*)$')
    if of == step and what == signature then return {'UNKNOWN'} end
  end
end
redis.call('HSET', journal, call, intent)
return {'GO'}
