-- Set the worst case of one request aside, and the escrow for a later closing turn, in every scope or in none; a run
-- that has to wait for money is parked here, so that no wake-up can come in between.
-- The reservation's id is its operation id: a replay answers its present state, and only OK permits sending.
--
-- USES  ledger fit governor
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 n: the how-many-th request of this claim, from 1
--       4 the process that asks   5 the highest number of its reservations that was acknowledged before this was sent
--       6 what a dry account means: park | stop | winddown | close | deny   7 catalogue of prices or ''   8 ms in park at most
--       9 n, then n fields and values of the run's hash, written when it is parked
--         then sizes, the largest first, count of numbers and for each: output cap, usd, tokens, escrow usd,
--         escrow tokens (the escrow is set to this, not raised by it). A smaller one is taken when there is no money
--         for a larger one, never because calls in flight are in the way. Then 1 when there are smaller ones yet;
--         last, of a call that shares a rate limit, its lane and the input tokens that are expected
-- REPLY {"OK", reservation, the how-many-th size, from 1, its number, tokens taken from its lane} | {"DENIED", scope, unit, kind, 1 when the run has an escrow}
--       | {"PACED", ms, why} (there is money, but no room in its lane) | {"SMALLER"} (these do not fit: ask again with all sizes) | {"PARKED", scope, unit, kind} | {"RECOVERING", until ms} | {"NO_LEDGER"} | {"CLOSED"} | {"STALE"}
--       | {"ROLLBACK", the highest number of the process that is known}
local id, fence, n = ARGV[1], ARGV[2], tonumber(ARGV[3])
local run, open = run_key(id), run_key(id) .. ':open'
local reservation = fence .. ':' .. ARGV[3]
local mine = 'op:' .. ARGV[4]
local l = redis.call('HMGET', LEDGER, 'born', 'recovering', mine, 'parked')
local f = redis.call('HMGET', run, 'state', 'fence', 'scopes', 'parked', 'op')
if not l[1] then return {'NO_LEDGER'} end
local known = tonumber(l[3]) or 0
if known < tonumber(ARGV[5]) then return {'ROLLBACK', int(known)} end
if f[1] == 'parked' and f[5] == reservation then
  local p = redis.call('HMGET', run, 'park_scope', 'park_unit', 'park_kind')
  return {'PARKED', p[1], p[2], p[3]}
end
if f[1] ~= 'running' or f[2] ~= fence then return {'STALE'} end
local h = redis.call('HMGET', open, 'n', 'escrow', reservation)
local of, number, size, counted, paced = string.match(h[1] or '', '^(%S+) (%d+) (%d+) (%d+) ?(%d*)$')
if of == fence and n <= tonumber(number) then
  if h[3] and n == tonumber(number) then return {'OK', reservation, tonumber(size), counted, paced ~= '' and paced or '0'} end
  return {'CLOSED'}
end
if l[2] and tonumber(l[2]) > now_ms() then return {'RECOVERING', l[2]} end

local fields, at = take(9)
local own, admitted = NOTHING, false
if h[2] then own, admitted = held(h[2]), true end
local scopes = scopes_in(f[3])
local accounts = accounts_of(scopes)

-- Somebody has waited for money longer: nobody is admitted past him, and when he is aged nobody goes on at all.
local function queue_in_front()
  if (tonumber(l[4]) or 0) == 0 then return nil end
  local since = tonumber(f[4]) or math.huge -- who has not waited comes after all, also in the same millisecond
  for _, a in ipairs(accounts) do
    local head, waits_since, its_unit = first_waiting(a.list)
    if head and head ~= id and waits_since < since and (not admitted or holds_all_up(a, head, waits_since)) then
      return a, its_unit, 'wait'
    end
  end
end

local usd, tokens, escrow_usd, escrow_tokens
local a, unit, kind, taken
for s = 1, tonumber(ARGV[at]) / 5 do
  local first = at + 5 * s - 4
  usd, tokens = amount(ARGV[first + 1]), amount(ARGV[first + 2])
  escrow_usd, escrow_tokens = amount(ARGV[first + 3]), amount(ARGV[first + 4])
  a, unit, kind = obstacle(accounts, usd + escrow_usd, tokens + escrow_tokens, own, false, nil)
  if not a then a, unit, kind = queue_in_front() end
  taken = s
  if not a or not goes_smaller(kind) then break end
end
if a then
  if goes_smaller(kind) and ARGV[at + tonumber(ARGV[at]) + 1] == '1' then return {'SMALLER'} end
  local function wait_parked()
    -- PART reservations
    -- PART slots
    -- PART parking
    local function need_of(s)
      local first = at + 5 * s - 4
      return int(ARGV[first + 1] + ARGV[first + 3]) .. ' ' .. int(ARGV[first + 2] + ARGV[first + 4])
    end
    local smallest = ARGV[at] / 5
    local need = need_of(taken) .. (taken < smallest and ' ' .. need_of(smallest) or '')
    forfeit_open(id, run, scopes)
    park(id, run, scopes, a, unit, kind, need, ARGV[6], tonumber(ARGV[8]), reservation, fields)
  end
  if not parks(a, kind, ARGV[6], admitted) then return {'DENIED', a.list, unit, kind, admitted and '1' or '0'} end
  wait_parked()
  return {'PARKED', a.list, unit, kind}
end

local lane, lane_tokens = ARGV[at + tonumber(ARGV[at]) + 2], 0
if lane then
  local cap = tonumber(ARGV[at + 5 * taken - 4])
  local found, wait, why = take_lane(lane, id, tonumber(ARGV[at + tonumber(ARGV[at]) + 3]), cap)
  if not found then return {'PACED', int(wait), why} end
  lane_tokens = found
end
local windows = windows_text(accounts)
local more = ARGV[7] ~= '' and {'c', ARGV[7]} or nil
if admitted and windows ~= string.gsub(own.rest, '^ %d+', '') then
  -- A day is over, or a window is new: the escrow goes with the call into the windows that run now.
  local left, entered, entered_names = {}, {}, {}
  for _, name in ipairs(own.windows) do
    if not string.find(windows, name, 1, true) then left[#left + 1] = name end
  end
  for _, account in ipairs(accounts) do
    if account.window and not string.find(own.rest, account.name, 1, true) then
      entered[#entered + 1], entered_names[#entered_names + 1] = account, account.name
    end
  end
  if #left > 0 then post('move', id, left, {ue = -own.usd, te = -own.tokens}) end
  if #entered > 0 then
    -- Written at once: the reservation writes only the fields that it changes itself.
    post_known('move', id, table.concat(entered_names, ' '), entered, {ue = own.usd, te = own.tokens})
    for _, account in ipairs(entered) do
      account[USD_ESCROWED] = (account[USD_ESCROWED] or 0) + own.usd
      account[TOKEN_ESCROWED] = (account[TOKEN_ESCROWED] or 0) + own.tokens
    end
  end
end
counted = int(known + 1)
local first = at + 5 * taken - 4
redis.call('HSET', open, reservation, ARGV[first + 1] .. ' ' .. ARGV[first + 2] .. windows,
  'n', fence .. ' ' .. ARGV[3] .. ' ' .. taken .. ' ' .. counted .. (lane and ' ' .. int(lane_tokens) or ''),
  'escrow', ARGV[first + 3] .. ' ' .. ARGV[first + 4] .. ' ' .. ARGV[first] .. windows)
redis.call('HSET', LEDGER, mine, counted)
if f[4] then redis.call('HDEL', run, 'parked') end
post_known('reserve', id .. ':' .. reservation, f[3] .. windows, accounts,
  {ur = usd, tr = tokens, ue = escrow_usd - own.usd, te = escrow_tokens - own.tokens}, more)
for _, account in ipairs(accounts) do
  if account.window and not account[USD_SPENT] then
    -- It begins here, also when nothing is reserved: what a call costs after all must find it.
    redis.call('HSET', scope_key(account.name), 'us', '0')
    redis.call('PEXPIREAT', scope_key(account.name), int(window_end(account.window) + WINDOW_KEPT_MS))
  end
end
return {'OK', reservation, taken, counted, int(lane_tokens)}
