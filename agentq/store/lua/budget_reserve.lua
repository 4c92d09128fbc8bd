-- Set the worst case of one request aside, and the escrow for a later closing turn, in every scope or in none.
-- The reservation's id is its operation id: a replay answers the present state, and only OK permits sending.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 n: the how-many-th request of this claim, from 1
--       4 usd   5 tokens   6 escrow usd   7 escrow tokens (the escrow is set to this, not raised by it)
-- REPLY {"OK", reservation} | {"DENIED", scope, unit, kind} | {"CLOSED"} | {"STALE"}
local id, fence, n = ARGV[1], ARGV[2], tonumber(ARGV[3])
local usd, tokens, escrow_usd, escrow_tokens = amount(ARGV[4]), amount(ARGV[5]), amount(ARGV[6]), amount(ARGV[7])
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'rn')
if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end
local reservation = fence .. ':' .. int(n)
if n <= tonumber(f[3]) then
  if redis.call('HEXISTS', run .. ':open', reservation) == 1 then return {'OK', reservation} end
  return {'CLOSED'}
end
local scopes = scopes_of(run)
local held_usd, held_tokens = escrow_of(run)
local need = {u = usd + escrow_usd, t = tokens + escrow_tokens}
local held = {u = held_usd, t = held_tokens}
local unit_name = {u = 'usd', t = 'tokens'}
for _, scope in ipairs(scopes) do
  for _, unit in ipairs({'u', 't'}) do
    local v = redis.call('HMGET', scope_key(scope), unit .. 'l', unit .. 's', unit .. 'r', unit .. 'e')
    local limit = tonumber(v[1])
    if limit then
      local spent, reserved, escrowed = tonumber(v[2]) or 0, tonumber(v[3]) or 0, (tonumber(v[4]) or 0) - held[unit]
      if spent + reserved + escrowed + need[unit] > limit then
        local kind = 'winddown'
        if need[unit] > limit then kind = 'never'
        elseif spent + need[unit] > limit then kind = 'exhausted'
        elseif reserved > 0 then kind = 'wait' end
        return {'DENIED', scope, unit_name[unit], kind}
      end
    end
  end
end
redis.call('HSET', run .. ':open', reservation, int(usd) .. ' ' .. int(tokens),
  'escrow', int(escrow_usd) .. ' ' .. int(escrow_tokens))
redis.call('HSET', run, 'rn', int(n))
book_all(scopes, {ur = usd, tr = tokens, ue = escrow_usd - held_usd, te = escrow_tokens - held_tokens})
log('reserve', id .. ':' .. reservation, usd, tokens, 'eu', int(escrow_usd), 'et', int(escrow_tokens))
return {'OK', reservation}
