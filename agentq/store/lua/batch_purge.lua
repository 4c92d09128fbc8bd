-- Remove a batch that is over before its retention ends: its runs with all that they have started, some at a time, then the
-- batch itself. Until that it stands as one whose runs have expired; rows that are added meanwhile make it live, and it stays.
-- Or remove only the threads of its runs: what was said, what happened, what tools gave. The results stay with the batch.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 how many of its rows are done with   3 the most runs to remove   4 '1': only their threads
-- REPLY {"MORE", how many of its rows are done with} | {"DONE"} | {"LIVE"} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local name, at, left, only_threads = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local batch = P .. 'batch:' .. name
local f = redis.call('HMGET', batch, 'sealed', 'total', 'ended', 'descendants', 'serial')
if not f[2] then return {'MISSING'} end
if f[1] ~= '1' or tonumber(f[2]) > tonumber(f[3]) or (tonumber(f[4]) or 0) > 0 then return {'LIVE'} end

-- Answers whether the run is gone, with all below it: no deeper than a tree of runs is.
local function remove(id)
  local run = run_key(id)
  local children = redis.call('HGETALL', run .. ':children')
  for i = 1, #children, 2 do
    if not remove(string.match(children[i + 1], '%S+$')) then return false end
    if not only_threads then redis.call('HDEL', run .. ':children', children[i]) end
  end
  if left <= 0 then return false end
  if only_threads then
    -- One that has none costs nothing: whoever comes again finds the same children, and must get further.
    left = left - math.min(1, redis.call('UNLINK', run .. ':msgs', run .. ':trace', run .. ':cache', run .. ':kept'))
    return true
  end
  left = left - 1
  for _, part in ipairs(RUN_PARTS) do redis.call('UNLINK', run .. part) end
  redis.call('UNLINK', scope_key('run:' .. id), P .. 'checkpoint:run:' .. id)
  return true
end

for _, id in ipairs(redis.call('LRANGE', batch .. ':runs', at, at + left - 1)) do
  if not remove(id) then return {'MORE', int(at)} end
  at = at + 1
end
if redis.call('LLEN', batch .. ':runs') > at then return {'MORE', int(at)} end
if only_threads then return {'DONE'} end
for _, part in ipairs(BATCH_PARTS) do redis.call('UNLINK', batch .. part) end
redis.call('DEL', P .. 'serial:' .. (f[5] or ''))
redis.call('ZREM', P .. 'batches', name)
-- The log knows its account: it goes as that of a batch whose retention is over.
expire_account('batch:' .. name, 1)
return {'DONE'}
