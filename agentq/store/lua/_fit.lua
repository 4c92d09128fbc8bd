-- Whether there is room for a need, and who may wait for it. Needs _base and _ledger.

local AGED_MS = 60000

-- Why a need does not fit into one limit: more than all of it (never), more than is not spent (exhausted), only in the
-- way of escrows that lie idle (winddown), or of calls and runs at work (wait).
local function why(a, unit, limit, spent, need, own_idle)
  if need > limit then return 'never' end
  if spent + need > limit then return 'exhausted' end
  local idle = (tonumber(redis.call('HGET', scope_key(a.name), unit .. 'i')) or 0) - own_idle
  return spent + idle + need > limit and 'winddown' or 'wait'
end

-- The first account into which a need (the call and the escrow together) does not fit, in which unit and why; nil when
-- it fits everywhere. What is frozen goes before all: whatever else is in the way, nothing goes on there. `own` is the escrow that the run holds, `parked` whether it is counted idle, `promised` what was
-- promised to others in this script: account name to {usd, tokens}.
local function obstacle(accounts, usd, tokens, own, parked, promised)
  for _, a in ipairs(accounts) do
    if a[WORDS] and string.find(a[WORDS], 'frozen', 1, true) then return a, 'usd', 'frozen' end
  end
  for _, a in ipairs(accounts) do
    local own_usd, own_tokens = own.usd, own.tokens
    if a.window and not string.find(own.rest, a.name, 1, true) then own_usd, own_tokens = 0, 0 end
    local taken = promised and promised[a.name]
    -- Tokens first, as the loop in one process does: both must give the same reason.
    local limit = tonumber(a[TOKEN_LIMIT])
    if limit then
      local spent = tonumber(a[TOKEN_SPENT]) or 0
      local used = spent + (a[TOKEN_RESERVED] or 0) + (a[TOKEN_ESCROWED] or 0) - own_tokens + (taken and taken[2] or 0)
      if used + tokens > limit then
        return a, 'tokens', why(a, 't', limit, spent, tokens, parked and own_tokens or 0)
      end
    end
    limit = tonumber(a[USD_LIMIT])
    if limit then
      local spent = tonumber(a[USD_SPENT]) or 0
      local used = spent + (a[USD_RESERVED] or 0) + (a[USD_ESCROWED] or 0) - own_usd + (taken and taken[1] or 0)
      if used + usd > limit then return a, 'usd', why(a, 'u', limit, spent, usd, parked and own_usd or 0) end
    end
  end
  return nil
end

-- Whether a smaller size of a call is tried after this denial of a larger one: not when calls in flight may make room soon.
-- Escrows of runs that are parked may lie there until somebody tops up; who can do with less brings one back.
local function goes_smaller(kind) return kind ~= 'wait' and kind ~= 'frozen' end

-- Whether a run that is denied like this is parked; otherwise its closing turn is due. `policy` is the run's: park; stop
-- (its closing turn, as soon as nobody at work can make room); winddown (its closing turn when only the escrows of idle runs
-- are in the way, so that they do not lie there unused). What a scope says itself goes before it. Of a closing turn that is
-- reserved afresh: close (park only for calls in flight), deny (not even then).
local function parks(a, kind, policy, admitted)
  if kind == 'frozen' then return true end
  if policy == 'deny' or kind == 'never' then return false end
  if kind == 'wait' then return true end
  if policy == 'close' or string.sub(a.list, 1, 4) == 'run:' then return false end
  local words = a[WORDS] or ''
  local chosen = string.match(words, 'park') or string.match(words, 'stop') or string.match(words, 'winddown') or policy
  -- A run without an escrow is in nobody's way: it can wait for what others hold.
  if kind == 'winddown' then return chosen == 'park' or not admitted end
  return chosen ~= 'stop'
end

local function list_key(list) return P .. 'parked:' .. list end

-- The first of a list who waits for calls in flight, since when, and in which unit. Others may stand before him: no call
-- in flight helps them, so they block nobody. No more are looked at than one script wakes.
local WOKEN_AT_ONCE = 8
local function first_waiting(list)
  local found = redis.call('ZRANGE', list_key(list), 0, WOKEN_AT_ONCE - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local f = redis.call('HMGET', run_key(found[i]), 'park_kind', 'park_unit')
    if f[1] == 'wait' then return found[i], tonumber(found[i + 1]), f[2] end
  end
end

-- Whether one who waits in this account lets nobody go on before him: he has waited for long, and calls in flight are all
-- that is in his way. What runs at work hold in escrow comes back when they end, so they must not be stopped for it.
local function holds_all_up(a, id, since)
  if now_ms() - since <= AGED_MS then return false end
  local f = redis.call('HMGET', run_key(id), 'park_need', 'park_unit')
  local text, of_tokens = redis.call('HGET', run_key(id) .. ':open', 'escrow'), f[2] == 'tokens'
  local own = text and held(text) or NOTHING
  if a.window and not string.find(own.rest, a.name, 1, true) then own = NOTHING end
  local limit = tonumber(a[of_tokens and TOKEN_LIMIT or USD_LIMIT])
  local used = (a[of_tokens and TOKEN_SPENT or USD_SPENT] or 0) + (a[of_tokens and TOKEN_ESCROWED or USD_ESCROWED] or 0)
  for usd, tokens in string.gmatch(f[1], '(%d+) (%d+)') do
    if limit and used - (of_tokens and own.tokens or own.usd) + (of_tokens and tokens or usd) <= limit then return true end
  end
  return false
end
