-- End the rows of a batch that are no runs yet: there is no money for them. What is being loaded may yet be taken back.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 stop reason: cost_budget | token_budget   3 how many runs must have been denied in turn, this one too:
--         none of the batch has spent anything meanwhile
-- REPLY {"OK", how many rows have ended} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
-- In a function, since a script may have 200 names at most.
local function done()
  -- PART feeder
  local batch = P .. 'batch:' .. ARGV[1]
  if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
  local spent = redis.call('HMGET', scope_key('batch:' .. ARGV[1]), 'us', 'ts')
  local now = (spent[1] or '0') .. '/' .. (spent[2] or '0')
  local before, denied = string.match(redis.call('HGET', batch, 'denied') or '', '^(%S+) (%d+)$')
  denied = before == now and denied + 1 or 1
  redis.call('HSET', batch, 'denied', now .. ' ' .. int(denied))
  if denied < tonumber(ARGV[3]) then return {'OK', '0'} end
  local dropped = drop_rows(ARGV[1], ARGV[2])
  close_batch(ARGV[1])
  return {'OK', int(dropped)}
end
return done()
