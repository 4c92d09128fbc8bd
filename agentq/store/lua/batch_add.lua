-- Add rows to a batch that is being loaded: all of these or, when one of them is a conflict, none. They wait until the
-- batch is sealed. A row that it has already, with the same content, is left alone.
--
-- KEYS  1 routing key
-- ARGV  1 batch   2 who loads   3 for how long he need not be heard of, ms
--       4 n, then n names and texts of templates   then rows: count, and for each run id, custom_id, content hash, priority,
--         payload
-- REPLY {"ADDED", how many are new, index of each row that was there, from 1, …} | {"CONFLICT", index, run}
--       | {"LOST"} (the batch was cancelled, or somebody else loads it by now) | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local batch, mine = P .. 'batch:' .. ARGV[1], ARGV[2]
local f = redis.call('HMGET', batch, 'loader', 'runs')
if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
local loader, was = string.match(f[1] or '', '^(%S+) %d+ (.)$')
if loader ~= mine then return {'LOST'} end
local templates, at = take(4)
local rows = tonumber(ARGV[at])
local custom_ids = {}
for i = 1, rows / 5 do custom_ids[i] = ARGV[at + 5 * i - 3] end
local known = rows > 0 and redis.call('HMGET', batch .. ':ids', unpack(custom_ids))
local reply, new = {'ADDED', 0}, {}
for i = 1, #custom_ids do
  local first = at + 5 * i - 4
  if known[i] then
    local hash, run = string.match(known[i], '^(%S+) (%S+)$')
    if hash ~= ARGV[first + 2] then return {'CONFLICT', int(i), run} end
    if run == ARGV[first] then reply[2] = reply[2] + 1 else reply[#reply + 1] = int(i) end
  else
    new[#new + 1] = first
  end
end
for i = 1, #templates, 2 do redis.call('HSETNX', batch .. ':templates', templates[i], templates[i + 1]) end
local ids, payloads, queue, runs = {}, {}, {}, {}
local order = redis.call('LLEN', batch .. ':runs')
for i, first in ipairs(new) do
  local run = ARGV[first]
  ids[2 * i - 1], ids[2 * i] = ARGV[first + 1], ARGV[first + 2] .. ' ' .. run
  payloads[2 * i - 1], payloads[2 * i] = run, ARGV[first + 4]
  queue[2 * i - 1], queue[2 * i] = int((9 - tonumber(ARGV[first + 3])) * 1e12 + order + i), run
  runs[i] = run
end
if #new > 0 then
  redis.call('HSET', batch .. ':ids', unpack(ids))
  redis.call('HSET', batch .. ':rows', unpack(payloads))
  redis.call('ZADD', batch .. ':loading', unpack(queue))
  redis.call('RPUSH', batch .. ':runs', unpack(runs))
  redis.call('HINCRBY', batch, 'total', #new)
  reply[2] = reply[2] + #new
end
redis.call('HSET', batch, 'loader', mine .. ' ' .. int(now_ms() + tonumber(ARGV[3])) .. ' ' .. was)
return reply
