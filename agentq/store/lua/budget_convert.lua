-- Turn the run's whole escrow into the reservation of its closing turn. Never refused for want of budget.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 n: the how-many-th request of this claim, from 1
-- REPLY {"OK", reservation, usd, tokens} | {"NONE"} (no escrow) | {"CLOSED"} | {"STALE"}
-- FLAGS allow-oom
local id, fence, n = ARGV[1], ARGV[2], tonumber(ARGV[3])
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'rn', 'scopes')
if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end
local reservation = fence .. ':' .. int(n)
if n <= tonumber(f[3]) then
  local usd, tokens = open_reservation(run, reservation)
  if usd then return {'OK', reservation, int(usd), int(tokens)} end
  return {'CLOSED'}
end
local usd, tokens, held = escrow_of(run)
if not held then return {'NONE'} end
redis.call('HDEL', run .. ':open', 'escrow')
redis.call('HSET', run .. ':open', reservation, int(usd) .. ' ' .. int(tokens))
redis.call('HSET', run, 'rn', int(n))
book(scopes_in(f[4]), {ur = usd, tr = tokens, ue = -usd, te = -tokens})
log('convert', id .. ':' .. reservation, usd, tokens)
return {'OK', reservation, int(usd), int(tokens)}
