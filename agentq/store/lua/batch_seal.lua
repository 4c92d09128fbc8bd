-- Seal a batch: all rows are in, so they may be admitted, and it is over when all its runs are. Where rows of an earlier
-- load still wait, the new ones go behind them some at a time.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 who loads, or ''   3 how many rows to move at most
-- REPLY {"SEALED", total} | {"MORE"} | {"LOST"} (the batch was cancelled, or somebody else loads it by now) | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
-- In a function, since a script may have 200 names at most.
local function done()
  -- PART feeder
  local batch = P .. 'batch:' .. ARGV[1]
  if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
  local f = redis.call('HMGET', batch, 'loader', 'sealed', 'total', 'tenant', 'cancelled')
  local loader = string.match(f[1] or '', '^(%S+)')
  if loader and loader ~= ARGV[2] or not loader and f[5] then return {'LOST'} end
  if not loader and f[2] == '1' then return {'SEALED', f[3]} end
  local waiting, into = batch .. ':loading', feed_of(ARGV[1])
  if redis.call('EXISTS', into) == 0 and redis.call('EXISTS', waiting) == 1 then
    redis.call('RENAME', waiting, into)
  else
    local some, moved = redis.call('ZPOPMIN', waiting, ARGV[3]), {}
    for i = 1, #some, 2 do moved[i], moved[i + 1] = some[i + 1], some[i] end
    if #moved > 0 then redis.call('ZADD', into, unpack(moved)) end
    if redis.call('EXISTS', waiting) == 1 then return {'MORE'} end
  end
  redis.call('HSET', batch, 'sealed', '1')
  redis.call('HDEL', batch, 'loader', 'cancelled')
  offer(ARGV[1])
  feed(f[4], FED_AT_ONCE)
  close_batch(ARGV[1])
  return {'SEALED', f[3]}
end
return done()
