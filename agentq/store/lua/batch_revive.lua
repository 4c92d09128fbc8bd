-- Let the rows of a batch that ended without ever becoming runs wait for their turn again.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch
-- REPLY {"OK", how many rows} | {"CANCELLING"} (it is cancelled and has live runs: with its rows they would go on) | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
-- In a function, since a script may have 200 names at most.
local function done()
  -- PART feeder
  local name = ARGV[1]
  local batch = P .. 'batch:' .. name
  local f = redis.call('HMGET', batch, 'tenant', 'cancelled')
  if not f[1] then return {'MISSING'} end
  if f[2] and redis.call('SCARD', batch .. ':open') > 0 then return {'CANCELLING'} end
  local revived, into = 0, feed_of(name)
  for _, reason in ipairs({'cancelled', 'cost_budget', 'token_budget'}) do
    local from = batch .. ':dropped:' .. reason
    local count = redis.call('ZCARD', from)
    if count > 0 then
      merge(from, into)
      redis.call('HINCRBY', batch, 'ended', -count)
      if redis.call('HINCRBY', batch, 'stop:' .. reason, -count) == 0 then redis.call('HDEL', batch, 'stop:' .. reason) end
      revived = revived + count
    end
  end
  if revived > 0 then
    redis.call('HDEL', batch, 'cancelled', 'told', 'denied')
    persist_batch(name)
    offer(name)
    feed(f[1], FED_AT_ONCE)
  end
  return {'OK', int(revived)}
end
return done()
