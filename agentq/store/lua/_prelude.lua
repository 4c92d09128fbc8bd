-- Shared by every script: put in front of its body when it is loaded. KEYS[1] is the routing key,
-- `{aq:<namespace>}:`; all other keys are built from it here, as in `store/keys.py`.
local P = KEYS[1]

local function run_key(id) return P .. 'run:' .. id end
local function scope_key(scope) return P .. 'scope:' .. scope end

-- Redis owns the clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A number as Redis wants it: never 1e+15, never -0.
local function int(n) return string.format('%.0f', n + 0) end

-- An amount from the caller: a whole number up to 2^53-1, or the script fails before it has written.
local function amount(s)
  local whole = s and (s == '0' or string.find(s, '^[1-9]%d*$')) and #s <= 16
  if not whole or tonumber(s) > 9007199254740991 then
    error({err = 'ERR agentq: not an amount: ' .. tostring(s)})
  end
  return tonumber(s)
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

-- ── the ledger ──────────────────────────────────────────────────────────────────────────────────
-- A scope's fields: u nano-USD, t tokens; l limit, s spent, r reserved, e escrowed; uf forfeited, uo overage.

-- A run's scopes, from the field `scopes` of its hash.
local function scopes_in(text)
  local list = {}
  for scope in string.gmatch(text or '', '%S+') do list[#list + 1] = scope end
  return list
end

-- The JSON array of texts that are JSON already: one reply instead of many.
local function json_array(texts) return '[' .. table.concat(texts, ',') .. ']' end

-- Add to fields of all these scopes; a change of 0 writes nothing. Exact below 2^53. `known` has, for each
-- scope, the present values by name, where the caller has read them already.
local function book(scopes, deltas, known)
  local names = {}
  for name, delta in pairs(deltas) do
    if delta ~= 0 then names[#names + 1] = name end
  end
  if #names == 0 then return end
  table.sort(names)
  for n, scope in ipairs(scopes) do
    local key, args = scope_key(scope), {}
    local old = not known and redis.call('HMGET', key, unpack(names))
    for i, name in ipairs(names) do
      args[2 * i - 1] = name
      args[2 * i] = int((tonumber(known and known[n][name] or old and old[i]) or 0) + deltas[name])
    end
    redis.call('HSET', key, unpack(args))
  end
end

-- One line of the ledger's log for each change of money.
local function log(op, id, usd, tokens, ...)
  redis.call('XADD', P .. 'log', 'MAXLEN', '~', '100000', '*', 'o', op, 'i', id, 'u', int(usd), 't', int(tokens), ...)
end

local function pair(text)
  local usd, tokens = string.match(text, '^(%d+) (%d+)$')
  return tonumber(usd), tonumber(tokens)
end

local function open_reservation(run, reservation)
  local text = redis.call('HGET', run .. ':open', reservation)
  if not text then return nil end
  return pair(text)
end

-- Charge an open reservation in full; a late settle may correct it once.
local function forfeit(id, run, scopes, reservation)
  local usd, tokens = open_reservation(run, reservation)
  if not usd then return false end
  redis.call('HDEL', run .. ':open', reservation)
  redis.call('HSET', run .. ':forfeits', reservation, int(usd) .. ' ' .. int(tokens))
  book(scopes, {us = usd, ts = tokens, ur = -usd, tr = -tokens, uf = usd})
  log('forfeit', id .. ':' .. reservation, usd, tokens)
  return true
end

-- Close one reservation: settle (at what it cost), release (nothing was billed), restore (released,
-- back into the escrow, where there is none) or forfeit. A fact: it looks at the reservation, not at the
-- run's fence.
local function close_reservation(id, run, scopes, reservation, how, usd, tokens)
  if how == 'forfeit' then return forfeit(id, run, scopes, reservation) end
  local held_usd, held_tokens = open_reservation(run, reservation)
  local name = id .. ':' .. reservation
  if held_usd then
    redis.call('HDEL', run .. ':open', reservation)
    if how == 'settle' then
      local over = math.max(0, usd - held_usd)
      book(scopes, {us = usd, ts = tokens, ur = -held_usd, tr = -held_tokens, uo = over})
      log('settle', name, usd, tokens)
    elseif how == 'restore' and redis.call('HEXISTS', run .. ':open', 'escrow') == 0 then
      redis.call('HSET', run .. ':open', 'escrow', int(held_usd) .. ' ' .. int(held_tokens))
      book(scopes, {ur = -held_usd, tr = -held_tokens, ue = held_usd, te = held_tokens})
      log('restore', name, held_usd, held_tokens)
    else
      book(scopes, {ur = -held_usd, tr = -held_tokens})
      log('release', name, held_usd, held_tokens)
    end
    return true
  end
  local lost = redis.call('HGET', run .. ':forfeits', reservation)
  if not lost then return false end
  -- Charged in full when its attempt died; its worker lives after all and knows the bill.
  redis.call('HDEL', run .. ':forfeits', reservation)
  local full_usd, full_tokens = pair(lost)
  if how ~= 'settle' then usd, tokens = 0, 0 end
  book(scopes, {us = usd - full_usd, ts = tokens - full_tokens, uf = -full_usd, uo = math.max(0, usd - full_usd)})
  log('late', name, usd, tokens)
  return true
end

-- Every exit from `running` closes what is still open: unclear, so charged in full.
local function forfeit_open(id, run, scopes)
  for _, reservation in ipairs(redis.call('HKEYS', run .. ':open')) do
    if reservation ~= 'escrow' then forfeit(id, run, scopes, reservation) end
  end
end

local function escrow_of(run)
  local text = redis.call('HGET', run .. ':open', 'escrow')
  if not text then return 0, 0, false end
  local usd, tokens = pair(text)
  return usd, tokens, true
end

local function release_escrow(id, run, scopes)
  local usd, tokens, held = escrow_of(run)
  if not held then return end
  redis.call('HDEL', run .. ':open', 'escrow')
  book(scopes, {ue = -usd, te = -tokens})
  log('escrow', id, 0, 0)
end

-- ── runs ────────────────────────────────────────────────────────────────────────────────────────
local RUN_PARTS = {'', ':msgs', ':trace', ':cache', ':open', ':forfeits'}
local BATCH_PARTS = {'', ':ids', ':runs', ':open'}

-- Rows are being added, perhaps to a batch that was over.
local function unseal(batch)
  local key = P .. 'batch:' .. batch
  redis.call('HDEL', key, 'sealed')
  for _, part in ipairs(BATCH_PARTS) do redis.call('PERSIST', key .. part) end
  redis.call('PERSIST', scope_key('batch:' .. batch))
end

-- A batch is over when it is sealed and all its runs are: from then on its keys have an end.
local function close_batch(batch)
  local key = P .. 'batch:' .. batch
  local f = redis.call('HMGET', key, 'sealed', 'total', 'ended', 'ttl')
  if f[1] ~= '1' or (tonumber(f[2]) or 0) > (tonumber(f[3]) or 0) then return end
  for _, part in ipairs(BATCH_PARTS) do redis.call('PEXPIRE', key .. part, f[4]) end
  redis.call('PEXPIRE', scope_key('batch:' .. batch), f[4])
end

-- End a run: money closed, counters moved, every key given an end. `fields` are set beside the reason.
local function end_run(id, run, reason, now, fields)
  local f = redis.call('HMGET', run, 'fence', 'batch', 'ttl', 'claimed', 'ms', 'state',
    'tenant', 'custom_id', 'scopes')
  local scopes = scopes_in(f[9])
  forfeit_open(id, run, scopes)
  release_escrow(id, run, scopes)
  local spent = tonumber(f[5]) or 0
  if f[4] and (f[6] == 'running' or f[6] == 'cancelling') then spent = spent + math.max(0, now - tonumber(f[4])) end
  redis.call('HSET', run, 'state', 'ended', 'stop_reason', reason, 'ended', int(now), 'fence', raised(f[1]),
    'ms', int(spent), unpack(fields))
  redis.call('HDEL', run, 'pending', 'deadline', 'not_before', 'hints')
  redis.call('ZREM', P .. 'watch', id)
  for _, part in ipairs(RUN_PARTS) do redis.call('PEXPIRE', run .. part, f[3]) end
  redis.call('PEXPIRE', scope_key('run:' .. id), f[3])
  if f[2] and f[2] ~= '' then
    local batch = P .. 'batch:' .. f[2]
    redis.call('SREM', batch .. ':open', id)
    redis.call('HINCRBY', batch, 'ended', 1)
    redis.call('HINCRBY', batch, 'stop:' .. reason, 1)
    close_batch(f[2])
  elseif f[8] ~= '' then
    redis.call('PEXPIRE', P .. 'ids:' .. f[7] .. ':' .. f[8], f[3])
  end
end

-- Why a worker may not go on with a run that it once claimed, or nil when it may. The holder of a run that
-- is being cancelled ends it here: its bill is booked, and nobody waits for its lease.
local function refusal(id, run, state, current, mine, op, now)
  if state == 'running' and current == mine then return nil end
  if not was_holder(state, current, mine) then return {'STALE'} end
  end_run(id, run, 'cancelled', now, {'op', op})
  return {'CANCELLED'}
end

-- Back to `queued`: anyone may claim the run from now on, or from `due` when it is delayed.
local function requeue(id, run, now, due, fields)
  local f = redis.call('HMGET', run, 'fence', 'claimed', 'ms')
  local spent = (tonumber(f[3]) or 0) + math.max(0, now - (tonumber(f[2]) or now))
  redis.call('HSET', run, 'state', 'queued', 'fence', raised(f[1]), 'ms', int(spent), unpack(fields))
  redis.call('ZADD', P .. 'watch', int(due), id)
end

-- After an outage nobody is rescued too early: a gap since the last tick, or time going back, gives
-- every lease one full term to be renewed first, at most once in three terms. Answers until when.
-- A gap is a third of a lease without a tick, as long as a heartbeat may take: 5 s by default, never under 1.5 s.
local function patience(now, lease_ms)
  local gap_ms = math.min(5000, math.max(1500, lease_ms / 3))
  local f = redis.call('HMGET', P .. 'clock', 'tick', 'patience', 'granted')
  local tick, till, granted = tonumber(f[1]) or 0, tonumber(f[2]) or 0, tonumber(f[3]) or 0
  local gap = now - tick > gap_ms or now < tick
  if gap and (now > granted + 3 * lease_ms or now < granted) then
    till = now + lease_ms
    redis.call('HSET', P .. 'clock', 'tick', int(now), 'patience', int(till), 'granted', int(now))
  elseif now - tick >= 500 or now < tick then
    redis.call('HSET', P .. 'clock', 'tick', int(now))
  end
  return till
end

-- Read a counted list of arguments at `at` (none at the end of all: an empty list); answers it and the next place.
local function take(at)
  local count, list = tonumber(ARGV[at] or 0), {}
  for i = 1, count do list[i] = ARGV[at + i] end
  return list, at + count + 1
end
