-- In front of every script. KEYS[1] is the routing key, `{aq:<namespace>}:`; all other keys are built from
-- it here, as in `store/keys.py`.
local P = KEYS[1]
local LEDGER = P .. 'ledger'

local function run_key(id) return P .. 'run:' .. id end
local function scope_key(scope) return P .. 'scope:' .. scope end

-- Redis owns the clock. It stands still while a script runs.
local clock
local function now_ms()
  if not clock then
    local t = redis.call('TIME')
    clock = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  return clock
end

-- A whole number as text: never 1e+15, never -0. (Lua by itself writes 14 digits.)
local function int(n)
  n = n + 0
  if n == 0 then return '0' end
  return n < 1e14 and n > -1e14 and n .. '' or string.format('%.0f', n)
end

-- An amount from the caller: a whole number up to 2^53-1, or the script fails before it has written.
local function amount(s)
  local whole = s and (s == '0' or string.find(s, '^[1-9]%d*$')) and #s <= 16
  if not whole or tonumber(s) > 9007199254740991 then
    error({err = 'ERR agentq: not an amount: ' .. tostring(s)})
  end
  return tonumber(s)
end

-- The same with a sign.
local function signed(s)
  if string.sub(s or '', 1, 1) == '-' and s ~= '-0' then return -amount(string.sub(s, 2)) end
  return amount(s)
end

local function fence_int(fence) return tonumber(string.match(fence, '^(%d+)')) end
local function fence_nonce(fence) return string.match(fence, '^%d+%-(.*)$') end
-- Leaving `running` raises the fence; the nonce of the next claim is not known yet.
local function raised(fence) return int(fence_int(fence) + 1) .. '-' end

-- The holder of a run that is being cancelled: the fence was raised once, over the same nonce.
local function was_holder(state, current, mine)
  return state == 'cancelling' and fence_nonce(current) == fence_nonce(mine)
    and fence_int(current) == fence_int(mine) + 1
end

-- A run's scopes, from the field `scopes` of its hash.
local function scopes_in(text)
  local list = {}
  for scope in string.gmatch(text or '', '%S+') do list[#list + 1] = scope end
  return list
end

-- The runs around a child, from its scopes: the root first, its parent last.
local function ancestors_in(scopes)
  local list = {}
  for i = 1, #scopes - 1 do list[#list + 1] = string.match(scopes[i], '^run:(.*)$') end
  return list
end

-- Whether a run around this one was cancelled: then this one is to be cancelled too.
local function is_orphan(scopes)
  for _, ancestor in ipairs(ancestors_in(scopes)) do
    local a = redis.call('HMGET', run_key(ancestor), 'state', 'stop_reason')
    if a[1] == 'cancelling' or a[2] == 'cancelled' then return true end
  end
  return false
end

-- The JSON array of texts that are JSON already: one reply instead of many.
local function json_array(texts) return '[' .. table.concat(texts, ',') .. ']' end

-- Read a counted list of arguments at `at` (none at the end of all: an empty list); answers it and the next place.
local function take(at)
  local count, list = tonumber(ARGV[at] or 0), {}
  for i = 1, count do list[i] = ARGV[at + i] end
  return list, at + count + 1
end

-- Something that a person should hear of: a worker's next tick takes it from here and logs it.
local function announce(event)
  event.at = int(now_ms())
  redis.call('RPUSH', P .. 'events', cjson.encode(event))
  redis.call('LTRIM', P .. 'events', -1000, -1)
end

-- Something that befell a run, and no step of it: its trace has it too. The step is counted from 1.
local function trace(run, kind, detail, ok, step)
  redis.call('RPUSH', run .. ':trace', cjson.encode({kind, detail, ok, tonumber(step) + 1, now_ms()}))
end

-- The first script of a namespace opens its ledger. A reserve without one is refused.
local function open_ledger() redis.call('HSETNX', LEDGER, 'born', int(now_ms())) end

-- The form of the state that this release writes and reads. It is raised with a structure that an older release would
-- not understand; `worker_sign_on` puts it into force once no older worker is alive.
local SCHEMA = 1

-- What a script answers whose release does not understand the state, or nil.
local function too_new()
  local schema = redis.call('HGET', LEDGER, 'schema')
  return schema and tonumber(schema) > SCHEMA and {'SCHEMA', schema} or nil
end
