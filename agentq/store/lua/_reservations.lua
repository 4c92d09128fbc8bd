-- What becomes of reservations and of the escrow. Needs _base and _ledger.

local function open_reservation(run, reservation)
  local text = redis.call('HGET', run .. ':open', reservation)
  return text and held(text) or nil
end

-- Charge an open reservation in full; a late settle may correct it once.
local function forfeit(id, run, scopes, reservation)
  local h = open_reservation(run, reservation)
  if not h then return false end
  redis.call('HDEL', run .. ':open', reservation)
  redis.call('HSET', run .. ':forfeits', reservation, int(h.usd) .. ' ' .. int(h.tokens) .. h.rest)
  post('forfeit', id .. ':' .. reservation, with(scopes, h.windows),
    {us = h.usd, ts = h.tokens, ur = -h.usd, tr = -h.tokens, uf = h.usd})
  return true
end

local function overran(name, over)
  if over > 0 then announce({event = 'overage', reservation = name, nano_usd = int(over)}) end
end

-- Close one reservation: settle (at what it cost), estimate (the same, by nobody's count), release (nothing was
-- billed), restore (released, back into the escrow, where there is none) or forfeit. A fact: it looks at the
-- reservation, not at the run's fence. Answers whether there was one to close.
local function close_reservation(id, run, scopes, reservation, how, usd, tokens)
  if how == 'forfeit' then return forfeit(id, run, scopes, reservation) end
  local h, name = open_reservation(run, reservation), id .. ':' .. reservation
  local settles = how == 'settle' or how == 'estimate'
  local more = how == 'estimate' and {'e', '1'} or nil
  if h then
    local accounts = with(scopes, h.windows)
    redis.call('HDEL', run .. ':open', reservation)
    if settles then
      local over = math.max(0, usd - h.usd)
      post('settle', name, accounts, {us = usd, ts = tokens, ur = -h.usd, tr = -h.tokens, uo = over}, more)
      overran(name, over)
    elseif how == 'restore' and redis.call('HEXISTS', run .. ':open', 'escrow') == 0 then
      redis.call('HSET', run .. ':open', 'escrow', int(h.usd) .. ' ' .. int(h.tokens) .. h.rest)
      post('restore', name, accounts, {ur = -h.usd, tr = -h.tokens, ue = h.usd, te = h.tokens})
    else
      post('release', name, accounts, {ur = -h.usd, tr = -h.tokens})
    end
    return true
  end
  local lost = redis.call('HGET', run .. ':forfeits', reservation)
  if not lost then return false end
  -- Charged in full when its attempt died; its worker lives after all and knows the bill.
  redis.call('HDEL', run .. ':forfeits', reservation)
  local full = held(lost)
  if not settles then usd, tokens = 0, 0 end
  local over = math.max(0, usd - full.usd)
  post('late', name, with(scopes, full.windows),
    {us = usd - full.usd, ts = tokens - full.tokens, uf = -full.usd, uo = over}, more)
  overran(name, over)
  return true
end

-- Every exit from `running` closes what is still open: unclear, so charged in full.
local function forfeit_open(id, run, scopes)
  for _, reservation in ipairs(redis.call('HKEYS', run .. ':open')) do
    if reservation ~= 'escrow' and reservation ~= 'n' then forfeit(id, run, scopes, reservation) end
  end
end

local function escrow_of(run)
  local text = redis.call('HGET', run .. ':open', 'escrow')
  if not text then return NOTHING, false end
  return held(text), true
end

local function release_escrow(id, run, scopes)
  local h, has = escrow_of(run)
  if not has then return end
  redis.call('HDEL', run .. ':open', 'escrow')
  post('escrow', id, with(scopes, h.windows), {ue = -h.usd, te = -h.tokens})
end

-- A run that is parked, waits or is held has its escrow idle: nothing will free it soon. It is an index, not money.
local function is_idle(state) return state == 'parked' or state == 'waiting' or state == 'held' end

local function mark_idle(run, scopes, sign)
  local h, has = escrow_of(run)
  if not has then return end
  local deltas = {ui = sign * h.usd, ti = sign * h.tokens}
  book(with(scopes, h.windows), changed(deltas), deltas)
end
