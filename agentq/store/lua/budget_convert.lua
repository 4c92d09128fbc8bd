-- Turn the run's whole escrow into the reservation of its closing turn. Never refused for want of budget; while a scope is
-- frozen the run is parked.
--
-- USES  ledger reservations fit slots parking governor
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 n: the how-many-th request of this claim, from 1
--       4 the process that asks   5 the highest number of its reservations that was acknowledged before this was sent
--       6 ms in park at most   7 n, then n fields and values of the run's hash, written when it is parked;
--         last, of a call that shares a rate limit, its lane and the input tokens that are expected
-- REPLY {"OK", reservation, usd, tokens, output cap, its number, tokens taken from its lane} | {"PACED", ms, why} | {"NONE"} (no escrow) | {"PARKED", scope, unit, kind}
--       | {"RECOVERING", until ms} | {"CLOSED"} | {"STALE"} | {"NO_LEDGER"}
--       | {"ROLLBACK", the highest number of the process that is known}
-- FLAGS allow-oom
local id, fence, n = ARGV[1], ARGV[2], tonumber(ARGV[3])
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'scopes', 'op')
local reservation = fence .. ':' .. int(n)
local mine = 'op:' .. ARGV[4]
local l = redis.call('HMGET', LEDGER, 'recovering', mine, 'born')
if not l[3] then return {'NO_LEDGER'} end
local known = tonumber(l[2]) or 0
if known < tonumber(ARGV[5]) then return {'ROLLBACK', int(known)} end
if f[1] == 'parked' and f[4] == reservation then
  local p = redis.call('HMGET', run, 'park_scope', 'park_unit', 'park_kind')
  return {'PARKED', p[1], p[2], p[3]}
end
if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end
local of, number, counted, paced =
  string.match(redis.call('HGET', run .. ':open', 'n') or '', '^(%S+) (%d+) %d+ (%d+) ?(%d*)$')
if of == fence and n <= tonumber(number) then
  local h = open_reservation(run, reservation)
  if h then return {'OK', reservation, int(h.usd), int(h.tokens), h.cap or '0', counted, paced ~= '' and paced or '0'} end
  return {'CLOSED'}
end
if l[1] and tonumber(l[1]) > now_ms() then return {'RECOVERING', l[1]} end
local h, has = escrow_of(run)
if not has then return {'NONE'} end
local scopes = scopes_in(f[3])
for _, scope in ipairs(scopes) do
  local words = redis.call('HGET', scope_key(scope), 'c')
  if words and string.find(words, 'frozen', 1, true) then
    local a = read_account(scope, scope)
    forfeit_open(id, run, scopes)
    park(id, run, scopes, a, 'usd', 'frozen', '0 0', 'deny', tonumber(ARGV[6]), reservation, (take(7)))
    return {'PARKED', scope, 'usd', 'frozen'}
  end
end
local _, after = take(7)
local lane, lane_tokens = ARGV[after], 0
if lane then
  local found, wait, why = take_lane(lane, id, tonumber(ARGV[after + 1]), tonumber(h.cap) or 0)
  if not found then return {'PACED', int(wait), why} end
  lane_tokens = found
end
counted = int(known + 1)
redis.call('HDEL', run .. ':open', 'escrow')
redis.call('HSET', run .. ':open', reservation, int(h.usd) .. ' ' .. int(h.tokens) .. h.rest,
  'n', fence .. ' ' .. int(n) .. ' 1 ' .. counted .. (lane and ' ' .. int(lane_tokens) or ''))
redis.call('HSET', LEDGER, mine, counted)
post('convert', id .. ':' .. reservation, with(scopes, h.windows),
  {ur = h.usd, tr = h.tokens, ue = -h.usd, te = -h.tokens})
return {'OK', reservation, int(h.usd), int(h.tokens), h.cap or '0', counted, int(lane_tokens)}
