-- End the rows of a batch that are no runs yet: there is no money for them. What is being loaded may yet be taken back.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 stop reason: cost_budget | token_budget
-- REPLY {"OK", how many rows have ended} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
-- In a function, since a script may have 200 names at most.
local function done()
  -- PART feeder
  if redis.call('EXISTS', P .. 'batch:' .. ARGV[1]) == 0 then return {'MISSING'} end
  local dropped = drop_rows(ARGV[1], ARGV[2])
  close_batch(ARGV[1])
  return {'OK', int(dropped)}
end
return done()
