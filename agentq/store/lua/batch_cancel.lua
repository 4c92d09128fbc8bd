-- Say that a batch is cancelled: from now on none of its runs is claimed, and its rows have ended. Its runs are cancelled
-- one by one after that.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 who asked
-- REPLY {"OK", how many rows have ended that were no runs} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
-- In a function, since a script may have 200 names at most.
local function done()
  -- PART feeder
  local batch = P .. 'batch:' .. ARGV[1]
  if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
  redis.call('HSET', batch, 'cancelled', ARGV[2], 'sealed', '1')
  redis.call('HDEL', batch, 'loader')
  local dropped = drop_rows(ARGV[1], 'cancelled', ':loading')
  close_batch(ARGV[1])
  return {'OK', int(dropped)}
end
return done()
