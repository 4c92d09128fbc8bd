-- The ledger: accounts, windows, and the one way in which money moves. Needs _base.
--
-- An account's fields: u nano-USD, t tokens; l limit, s spent, r reserved, e escrowed; i the part of e that idle
-- runs hold (parked or waiting); uf forfeited, uo overage; ua, ta the alert that was given last, in percent; c its
-- configuration in words: day, month (windows that count), frozen, and park, stop or winddown (what a dry account means).

-- ── windows ─────────────────────────────────────────────────────────────────────────────────────
-- `tenant:acme@day` holds the limits of each day, `tenant:acme@day:2026-11-29` what one day has spent.
local WINDOW_KEPT_MS = 62 * 86400000

local function is_window(account) return string.find(account, '@%a+:') ~= nil end
-- Where the limits of an account stand.
local function limits_of(account) return is_window(account) and string.match(account, '^(.*@%a+):') or account end

-- Year, month and day of a time in UTC (days are counted from 1 March 0000, so that leap days come last).
local function civil(ms)
  local days = math.floor(ms / 86400000) + 719468
  local era = math.floor(days / 146097)
  local doe = days - era * 146097
  local yoe = math.floor(
    (doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local shifted = math.floor((5 * doy + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - math.floor((153 * shifted + 2) / 5) + 1
end

-- The running window of a scope: the name of its account.
local function window_of(scope, kind)
  local year, month, day = civil(now_ms())
  if kind == 'day' then return string.format('%s@day:%04d-%02d-%02d', scope, year, month, day) end
  return string.format('%s@month:%04d-%02d', scope, year, month)
end

-- When the running window of a kind ends, in ms.
local function window_end(kind)
  local day = 86400000
  local till = (math.floor(now_ms() / day) + 1) * day
  if kind == 'day' then return till end
  local _, this = civil(now_ms())
  repeat
    local _, month = civil(till)
    if month ~= this then return till end
    till = till + day
  until false
end

-- ── accounts ────────────────────────────────────────────────────────────────────────────────────
local USD_LIMIT, USD_SPENT, USD_RESERVED, USD_ESCROWED = 1, 2, 3, 4
local TOKEN_LIMIT, TOKEN_SPENT, TOKEN_RESERVED, TOKEN_ESCROWED, WORDS = 5, 6, 7, 8, 9
local PLACE = {us = 2, ur = 3, ue = 4, ts = 6, tr = 7, te = 8}

local function read_account(name, list)
  local a = redis.call('HMGET', scope_key(name), 'ul', 'us', 'ur', 'ue', 'tl', 'ts', 'tr', 'te', 'c')
  a.name, a.list = name, list
  return a
end

-- The accounts of these scopes, widest first, and behind each scope its windows that are running now. `list` is
-- where a run parks that does not fit in.
local function accounts_of(scopes)
  local accounts = {}
  for _, scope in ipairs(scopes) do
    local a = read_account(scope, scope)
    accounts[#accounts + 1] = a
    if a[WORDS] then
      for kind in string.gmatch(a[WORDS], '%a+') do
        if kind == 'day' or kind == 'month' then
          local list = scope .. '@' .. kind
          local limits = redis.call('HMGET', scope_key(list), 'ul', 'tl', 'c')
          local w = read_account(window_of(scope, kind), list)
          w[USD_LIMIT], w[TOKEN_LIMIT], w[WORDS], w.window = limits[1], limits[2], limits[3] or a[WORDS], kind
          accounts[#accounts + 1] = w
        end
      end
    end
  end
  return accounts
end

-- The windows among accounts as they are written behind an amount: each with a space in front.
local function windows_text(accounts)
  local text = ''
  for _, a in ipairs(accounts) do
    if a.window then text = text .. ' ' .. a.name end
  end
  return text
end

-- ── amounts that are held ───────────────────────────────────────────────────────────────────────
-- A reservation, and likewise the escrow, is the text `usd tokens [output cap] [windows …]`.
local function held(text)
  local usd, tokens, rest = string.match(text, '^(%d+) (%d+)(.*)$')
  local h = {usd = tonumber(usd), tokens = tonumber(tokens), rest = rest, windows = {}}
  if rest ~= '' then
    h.cap = string.match(rest, '^ (%d+)')
    for window in string.gmatch(rest, '%S+@%S+') do h.windows[#h.windows + 1] = window end
  end
  return h
end

local NOTHING = {usd = 0, tokens = 0, rest = '', windows = {}}

local function open_reservation(run, reservation)
  local text = redis.call('HGET', run .. ':open', reservation)
  return text and held(text) or nil
end

-- These scopes, and the windows in which something is held.
local function with(scopes, windows)
  if #windows == 0 then return scopes end
  local all = {unpack(scopes)}
  for _, window in ipairs(windows) do all[#all + 1] = window end
  return all
end

-- ── money moves ─────────────────────────────────────────────────────────────────────────────────
-- 50, 80 and 100 percent of a limit are said once, until the limit is changed.
local function alert_level(spent, limit)
  if not limit or limit <= 0 then return 0 end
  if spent >= limit then return 100 end
  if spent * 5 >= limit * 4 then return 80 end
  return spent * 2 >= limit and 50 or 0
end

local function alert(account, unit, level, spent, limit)
  redis.call('XADD', P .. 'log', '0-*', 'o', 'alert', 'i', account, 's', '', 'd', '', 'm', int(now_ms()),
    'w', unit .. ' ' .. level .. '%')
  announce({event = 'budget_alert', scope = account, unit = unit, percent = level, spent = int(spent), limit = int(limit)})
end

-- What of an account is read before it is written: the fields that change, and, when it spends, what alerts are about.
-- A run's own limit is looked at by each of its steps: an alert would only repeat it.
local function write_account(account, names, deltas, old)
  local key, args = scope_key(account), {}
  local spends = (deltas.us or 0) ~= 0 or (deltas.ts or 0) ~= 0
  local watched = spends and string.sub(account, 1, 4) ~= 'run:'
  local asked = {unpack(names)}
  if watched then
    for _, name in ipairs({'us', 'ts', 'ul', 'tl', 'ua', 'ta'}) do asked[#asked + 1] = name end
  end
  local values = not old and redis.call('HMGET', key, unpack(asked))
  for i, name in ipairs(names) do
    args[2 * i - 1] = name
    args[2 * i] = int((tonumber(old and old[PLACE[name]] or values and values[i]) or 0) + deltas[name])
  end
  if watched then
    local n = #names
    local limits = {values[n + 3], values[n + 4]}
    if is_window(account) then limits = redis.call('HMGET', scope_key(limits_of(account)), 'ul', 'tl') end
    for i, unit in ipairs({'u', 't'}) do
      local limit, spent = tonumber(limits[i]), (tonumber(values[n + i]) or 0) + (deltas[unit .. 's'] or 0)
      local level = alert_level(spent, limit)
      if level > (tonumber(values[n + 4 + i]) or 0) then
        args[#args + 1] = unit .. 'a'
        args[#args + 1] = int(level)
        alert(account, unit == 'u' and 'usd' or 'tokens', level, spent, limit)
      end
    end
  end
  redis.call('HSET', key, unpack(args))
end

local function changed(deltas)
  local names = {}
  for name, delta in pairs(deltas) do
    if delta ~= 0 then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- Change fields of these accounts. `known` are the accounts as they were read, in the same order.
local function book(accounts, names, deltas, known)
  if #names == 0 then return end
  for i, account in ipairs(accounts) do
    -- A window that is so old that nobody counts it any more stays away.
    if known or not is_window(account) or redis.call('EXISTS', scope_key(account)) == 1 then
      write_account(account, names, deltas, known and known[i])
    end
  end
end

-- One entry of the log, numbered 0-1, 0-2, … without a gap. `more`: further fields of it. Answers what has changed.
local function note(op, id, accounts, deltas, more)
  local names, text = changed(deltas), {}
  for i, name in ipairs(names) do text[i] = name .. ' ' .. int(deltas[name]) end
  redis.call('XADD', P .. 'log', '0-*', 'o', op, 'i', id, 's', table.concat(accounts, ' '),
    'd', table.concat(text, ' '), 'm', int(now_ms()), unpack(more or {}))
  return names
end

-- The one way in which money moves: an entry of the log, and the same change of all these accounts.
local function post(op, id, accounts, deltas, more, known)
  book(accounts, note(op, id, accounts, deltas, more), deltas, known)
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

-- A run that is parked or waits holds its escrow idle: nothing will free it soon. It is an index, not money.
local function mark_idle(run, scopes, sign)
  local h, has = escrow_of(run)
  if not has then return end
  local deltas = {ui = sign * h.usd, ti = sign * h.tokens}
  book(with(scopes, h.windows), changed(deltas), deltas)
end
