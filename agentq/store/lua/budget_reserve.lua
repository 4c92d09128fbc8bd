-- Set the worst case of one request aside, and the escrow for a later closing turn, in every scope or in none.
-- The reservation's id is its operation id: a replay answers the present state, and only OK permits sending.
--
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 n: the how-many-th request of this claim, from 1
--       4 usd   5 tokens   6 escrow usd   7 escrow tokens (the escrow is set to this, not raised by it)
-- REPLY {"OK", reservation} | {"DENIED", scope, unit, kind, 1 when the run has an escrow} | {"CLOSED"} | {"STALE"}
local id, fence, n = ARGV[1], ARGV[2], tonumber(ARGV[3])
local usd, tokens, escrow_usd, escrow_tokens = amount(ARGV[4]), amount(ARGV[5]), amount(ARGV[6]), amount(ARGV[7])
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'rn', 'scopes')
if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end
local reservation = fence .. ':' .. int(n)
if n <= tonumber(f[3]) then
  if redis.call('HEXISTS', run .. ':open', reservation) == 1 then return {'OK', reservation} end
  return {'CLOSED'}
end
local scopes = scopes_in(f[4])
local held_usd, held_tokens, admitted = escrow_of(run)
admitted = admitted and '1' or '0'
-- Why this need does not fit into what is left of one limit, or nil when it does.
local function denial(limit, spent, reserved, escrowed, need)
  if not limit or spent + reserved + escrowed + need <= limit then return nil end
  if need > limit then return 'never' end
  if spent + need > limit then return 'exhausted' end
  return reserved > 0 and 'wait' or 'winddown'
end
local function field(value) return tonumber(value) or 0 end
local known = {}
for n_th, scope in ipairs(scopes) do
  local v = redis.call('HMGET', scope_key(scope), 'ul', 'us', 'ur', 'ue', 'tl', 'ts', 'tr', 'te')
  -- Tokens first, as the loop in one process does: both must give the same reason.
  local kind = denial(tonumber(v[5]), field(v[6]), field(v[7]), field(v[8]) - held_tokens, tokens + escrow_tokens)
  if kind then return {'DENIED', scope, 'tokens', kind, admitted} end
  kind = denial(tonumber(v[1]), field(v[2]), field(v[3]), field(v[4]) - held_usd, usd + escrow_usd)
  if kind then return {'DENIED', scope, 'usd', kind, admitted} end
  known[n_th] = {ur = v[3], ue = v[4], tr = v[7], te = v[8]}
end
redis.call('HSET', run .. ':open', reservation, int(usd) .. ' ' .. int(tokens),
  'escrow', int(escrow_usd) .. ' ' .. int(escrow_tokens))
redis.call('HSET', run, 'rn', int(n))
book(scopes, {ur = usd, tr = tokens, ue = escrow_usd - held_usd, te = escrow_tokens - held_tokens}, known)
log('reserve', id .. ':' .. reservation, usd, tokens, 'eu', int(escrow_usd), 'et', int(escrow_tokens))
return {'OK', reservation}
