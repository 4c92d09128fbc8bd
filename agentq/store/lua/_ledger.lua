-- The ledger: accounts, windows, and the one way in which money moves. Needs _base.
-- Redis writes a whole number from Lua with all its digits up to 2^53; in a text it takes int() to do that.
--
-- An account's fields: u nano-USD, t tokens; l limit, s spent, r reserved, e escrowed; i the part of e that idle
-- runs hold (parked, waiting or held); uf forfeited, uo overage; ua, ta the alert that was given last, in percent; c its
-- configuration in words: day, month (windows that count), frozen, and park, stop or winddown (what a dry account means).

-- ── windows ─────────────────────────────────────────────────────────────────────────────────────
-- `tenant:acme@day` holds the limits of each day, `tenant:acme@day:2026-11-29` what one day has spent.
local WINDOW_KEPT_MS = 62 * 86400000

local function is_window(account) return string.find(account, '@%a+:') ~= nil end
-- Where the limits of an account stand.
local function limits_of(account) return is_window(account) and string.match(account, '^(.*@%a+):') or account end

-- The running window of a kind: its name (`2026-11-29`, `2026-11`), and when it ends, in ms. All in UTC.
local function window(kind)
  -- Year, month and day of a time. Days are counted from 1 March 0000, so that leap days come last.
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
  local year, month, day = civil(now_ms())
  local till = (math.floor(now_ms() / 86400000) + 1) * 86400000
  if kind == 'day' then return string.format('%04d-%02d-%02d', year, month, day), till end
  while select(2, civil(till)) == month do till = till + 86400000 end
  return string.format('%04d-%02d', year, month), till
end

-- The account of a scope's running window.
local function window_of(scope, kind) return scope .. '@' .. kind .. ':' .. (window(kind)) end

-- When the running window of a kind ends, in ms.
local function window_end(kind) return select(2, window(kind)) end

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
  redis.call('XADD', P .. 'log', '0-*', 'o', 'alert', 'i', account, 's', '', 'd', '', 'm', now_ms(),
    'w', unit .. ' ' .. level .. '%')
  announce({event = 'budget_alert', scope = account, unit = unit, percent = level, spent = int(spent), limit = int(limit)})
end

-- Change fields of one account. When it spends, alerts are looked at too; a run's own limit is looked at by each of its
-- steps, so an alert would only repeat it.
local function write_account(account, names, deltas)
  local key, args = scope_key(account), {}
  local spends = (deltas.us or 0) ~= 0 or (deltas.ts or 0) ~= 0
  local watched = spends and string.sub(account, 1, 4) ~= 'run:'
  local n, values = #names, nil
  if watched then
    local asked = {unpack(names)}
    for i, name in ipairs({'us', 'ts', 'ul', 'tl', 'ua', 'ta'}) do asked[n + i] = name end
    values = redis.call('HMGET', key, unpack(asked))
  else
    values = redis.call('HMGET', key, unpack(names))
  end
  for i, name in ipairs(names) do
    args[2 * i - 1], args[2 * i] = name, (values[i] or 0) + deltas[name]
  end
  if watched then
    local limits = {values[n + 3], values[n + 4]}
    if is_window(account) then limits = redis.call('HMGET', scope_key(limits_of(account)), 'ul', 'tl') end
    for i, unit in ipairs({'u', 't'}) do
      local limit, spent = tonumber(limits[i]), (values[n + i] or 0) + (deltas[unit .. 's'] or 0)
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

local FIELDS = {'te', 'ti', 'tr', 'ts', 'ue', 'uf', 'ui', 'uo', 'ur', 'us'}
local function changed(deltas)
  local names = {}
  for _, name in ipairs(FIELDS) do
    if (deltas[name] or 0) ~= 0 then names[#names + 1] = name end
  end
  return names
end

-- Change fields of these accounts.
local function book(accounts, names, deltas)
  if #names == 0 then return end
  for _, account in ipairs(accounts) do
    -- A window that is so old that nobody counts it any more stays away.
    if not is_window(account) or redis.call('EXISTS', scope_key(account)) == 1 then
      write_account(account, names, deltas)
    end
  end
end

-- One entry of the log, numbered 0-1, 0-2, … without a gap. `accounts` is a list, or a text with spaces. `more`: further
-- fields of it. Answers which fields have changed.
local function note(op, id, accounts, deltas, more)
  local names, text = changed(deltas), {}
  for i, name in ipairs(names) do text[i] = name .. ' ' .. int(deltas[name]) end
  if type(accounts) == 'table' then accounts = table.concat(accounts, ' ') end
  redis.call('XADD', P .. 'log', '0-*', 'o', op, 'i', id, 's', accounts,
    'd', table.concat(text, ' '), 'm', now_ms(), unpack(more or {}))
  return names
end

-- The one way in which money moves: an entry of the log, and the same change of all these accounts.
local function post(op, id, accounts, deltas, more) book(accounts, note(op, id, accounts, deltas, more), deltas) end

-- The same for accounts that have just been read, of which nothing is spent: `text` has their names.
local function post_known(op, id, text, known, deltas, more)
  local names, args = note(op, id, text, deltas, more), {}
  if #names == 0 then return end
  for _, a in ipairs(known) do
    for i, name in ipairs(names) do
      args[2 * i - 1], args[2 * i] = name, (a[PLACE[name]] or 0) + deltas[name]
    end
    redis.call('HSET', scope_key(a.name), unpack(args))
  end
end
