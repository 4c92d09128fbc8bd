-- Rows, and how they become runs. Needs _base and _slots.
--
-- `turns` has the tenants with rows that may be admitted, by virtual time: tokens ÷ weight. `turns:<tenant>` has its
-- batches, by their own virtual time, and by priority before that. A run is charged with what its batch's runs
-- need on average when it is admitted, and with what it has really needed when it ends.

local PRIORITY_STEP = 1e13
local FED_AT_ONCE, TRIES, MEAN_OF = 4, 4, 16
-- What a run is charged with at least: who fails at once, at no cost, has his turns like the others. It is also what the first
-- of a batch are charged with: were it more than they need, who comes next would begin behind them.
local LEAST_CHARGE = 100
local GRACE_OF_ROW_MS = 5000
-- A call may have 8,000 values at most.
local MOVED_AT_ONCE, MUCH_SHORTER = 2000, 4
-- A batch with fewer runs that are delayed is fed, however small the window.
local LEAST_DELAYED = 8

local function rows_of(batch) return P .. 'batch:' .. batch .. ':rows' end
local function feed_of(batch) return P .. 'batch:' .. batch .. ':feed' end

-- How many runs may be in flight together.
local function places()
  local f = redis.call('HMGET', P .. 'feeder', 'window', 'max')
  return math.min(tonumber(f[1]) or 0, tonumber(f[2]) or math.huge)
end

-- The batch that a row's id belongs to, or nil.
local function batch_of_row(id)
  local serial = string.match(id, '^run_%w+_(%w+)$')
  return serial and redis.call('GET', P .. 'serial:' .. serial) or nil
end

-- What the feeder has to know of a batch, or nil when none of its rows may be admitted now, and when it may start.
local function open_batch(batch)
  local key = P .. 'batch:' .. batch
  local f = redis.call('HMGET', key, 'tenant', 'cancelled', 'paused', 'dry', 'at', 'max_in_flight', 'max_open', 'priority',
    'mean', 'pilot')
  if not f[1] or f[2] or f[3] or f[4] then return nil end
  if f[5] and tonumber(f[5]) > now_ms() then return nil, f[5] end
  local delayed = redis.call('SCARD', key .. ':delayed')
  -- What is delayed comes back by itself: its place is kept for it.
  if f[6] and redis.call('SCARD', P .. 'slots:b:' .. batch) + delayed >= tonumber(f[6]) then return nil end
  if f[7] and redis.call('SCARD', key .. ':open') >= tonumber(f[7]) then return nil end
  if delayed >= LEAST_DELAYED and delayed >= places() then return nil end
  if f[10] then
    -- The sample of its pilot stands in front of all others; these wait until somebody has decided about it.
    local first = redis.call('ZRANGE', feed_of(batch), 0, 0, 'WITHSCORES')
    if not first[2] or tonumber(first[2]) >= 0 then return nil end
  end
  return {tenant = f[1], priority = tonumber(f[8]) or 0, mean = tonumber(f[9]) or LEAST_CHARGE}
end

local function is_full(tenant)
  local f = redis.call('HMGET', P .. 'feeder', 'max:' .. tenant, 'tenant_max')
  local most = f[1] or f[2]
  return most and redis.call('SCARD', P .. 'slots:t:' .. tenant) >= tonumber(most)
end

-- A tenant takes turns if it has a batch that does, and may have one more in flight. It begins where the one stands whose
-- turn is next, or would be if it were not aside; further on when it has had more than that itself.
local function seat(tenant)
  if redis.call('ZSCORE', P .. 'turns', tenant) or redis.call('EXISTS', P .. 'turns:' .. tenant) == 0 then return end
  if is_full(tenant) then return end
  local first, aside = redis.call('ZRANGE', P .. 'turns', 0, 0, 'WITHSCORES'), P .. 'aside'
  if not first[2] then first = redis.call('ZRANGE', aside, 0, 0, 'WITHSCORES') end
  local at = tonumber(first[2] or 0)
  redis.call('ZADD', P .. 'turns', int(math.max(at, tonumber(redis.call('ZSCORE', aside, tenant) or at))), tenant)
  redis.call('ZREM', aside, tenant)
  redis.call('ZREMRANGEBYSCORE', aside, '-inf', '(' .. int(at))
end

-- A batch takes no turns for now.
local function rest(batch, tenant)
  redis.call('ZREM', P .. 'turns:' .. tenant, batch)
  if redis.call('EXISTS', P .. 'turns:' .. tenant) == 0 then stand_aside(tenant) end
end

-- A batch takes turns if it may. Who comes to it begins where the one stands whose turn is next: nobody saves turns up.
local function offer(batch)
  if redis.call('EXISTS', feed_of(batch)) == 0 then return end
  local b, at = open_batch(batch)
  if not b then
    if at then redis.call('ZADD', P .. 'starts', at, batch) end
    return
  end
  local mine = P .. 'turns:' .. b.tenant
  if not redis.call('ZSCORE', mine, batch) then
    local first, base = redis.call('ZRANGE', mine, 0, 0, 'WITHSCORES'), 0
    if first[1] then
      local priority = tonumber(redis.call('HGET', P .. 'batch:' .. first[1], 'priority')) or 0
      base = tonumber(first[2]) + priority * PRIORITY_STEP
    end
    redis.call('ZADD', mine, int(base - b.priority * PRIORITY_STEP), batch)
  end
  seat(b.tenant)
end

-- Charge a tenant and its batch with tokens, also a tenant that stands aside. A batch without rows has no turns to lose.
local function charge(tenant, batch, tokens)
  local weight = tonumber(redis.call('HGET', P .. 'feeder', 'weight:' .. tenant)) or 1
  for _, key in ipairs({P .. 'turns', P .. 'aside'}) do
    redis.call('ZADD', key, 'XX', 'INCR', string.format('%.3f', tokens / weight), tenant)
  end
  redis.call('ZADD', P .. 'turns:' .. tenant, 'XX', 'INCR', int(tokens), batch)
end

-- Make a run of a row: queued, and in nobody's list yet. Answers whether there was such a row.
local function make_run(batch, id)
  local text = redis.call('HGET', rows_of(batch), id)
  if not text then return false end
  local key, run = P .. 'batch:' .. batch, run_key(id)
  local row = cjson.decode(text)
  local t = cjson.decode(redis.call('HGET', key .. ':templates', row[1]))
  local usd_limit = row[5] ~= '' and row[5] or t[7]
  redis.call('HSET', run, 'state', 'queued', 'step', '0', 'phase', 'model', 'fence', '0-', 'hash', row[3],
    'custom_id', row[2], 'batch', batch, 'tenant', t[1], 'scopes', t[2] .. ' run:' .. id, 'created', t[3],
    'ttl', redis.call('HGET', key, 'ttl'), 'spec', t[6] .. ',' .. row[4] .. '}', 'head', t[5], 'definition', t[4])
  for i = 9, #t do redis.call('RPUSH', run .. ':msgs', t[i]) end
  for i = 6, #row do redis.call('RPUSH', run .. ':msgs', row[i]) end
  local account = scope_key('run:' .. id)
  local set = redis.call('HMGET', account, 'dul', 'dtl')
  if usd_limit ~= '' and not set[1] then redis.call('HSET', account, 'ul', usd_limit) end
  if t[8] ~= '' and not set[2] then redis.call('HSET', account, 'tl', t[8]) end
  if set[1] or set[2] then
    -- Somebody has limited the row: that is what its first claim tells.
    local has = redis.call('HMGET', account, 'ul', 'tl')
    redis.call('HSET', run, 'limits', (has[1] or '-') .. ' ' .. (has[2] or '-'))
  end
  redis.call('HDEL', rows_of(batch), id)
  redis.call('ZREM', feed_of(batch), id)
  redis.call('ZREM', key .. ':loading', id)
  redis.call('SADD', key .. ':open', id)
  return true
end

-- The run of a row on which somebody acts before its turn has come. It is due, so that the tick sends its hint, but not
-- before its batch is.
local function run_of_row(id)
  local batch = batch_of_row(id)
  -- A load that is not sealed may yet be taken back, and what was dropped has ended.
  if not batch or not redis.call('ZSCORE', feed_of(batch), id) or not make_run(batch, id) then return false end
  local due = math.max(now_ms(), tonumber(redis.call('HGET', P .. 'batch:' .. batch, 'at')) or 0)
  redis.call('HSET', run_key(id), 'not_before', int(due))
  redis.call('ZADD', P .. 'watch', int(due), id)
  if due <= now_ms() then take_slot_again(id, run_key(id)) end
  return true
end

-- The reason for which a row ended without becoming a run, or nil.
local function dropped_as(id)
  local batch = batch_of_row(id)
  for _, reason in ipairs(batch and {'cancelled', 'cost_budget', 'token_budget'} or {}) do
    if redis.call('ZSCORE', P .. 'batch:' .. batch .. ':dropped:' .. reason, id) then return reason end
  end
end

-- Admit the next row of a tenant. Answers whether there was one that may be.
local function feed_one(tenant)
  local batch = redis.call('ZRANGE', P .. 'turns:' .. tenant, 0, 0)[1]
  if not batch or is_full(tenant) then
    stand_aside(tenant)
    return false
  end
  local b = open_batch(batch)
  local id = b and redis.call('ZRANGE', feed_of(batch), 0, 0)[1]
  if not id then
    rest(batch, tenant)
    return false
  end
  if not make_run(batch, id) then
    redis.call('ZREM', feed_of(batch), id)
    return false
  end
  local now, run = now_ms(), run_key(id)
  redis.call('HSET', run, 'turn', int(b.mean))
  charge(tenant, batch, b.mean)
  take_slot(id, tenant, batch)
  local queue, message = string.match(redis.call('HGET', P .. 'feeder', 'hint') or '', '^(%S+) (.*)$')
  if queue then
    push_hint(queue, (string.gsub(message, '@run@', id)), tenant)
    redis.call('ZADD', P .. 'watch', int(now + GRACE_OF_ROW_MS), id)
  else
    -- With a broker of its own, or before any worker: the tick sends it.
    redis.call('HSET', run, 'not_before', int(now))
    redis.call('ZADD', P .. 'watch', int(now), id)
  end
  if redis.call('EXISTS', feed_of(batch)) == 0 then rest(batch, tenant) end
  return true
end

-- Whether a tenant has one admitted although no slot is free: it has nothing in flight; or it has less than its share of the
-- window, and others have filled that with runs that need no turn (single ones, or retried).
local function goes_before(tenant, most_slots)
  local mine, all = redis.call('SCARD', P .. 'slots:t:' .. tenant), redis.call('SCARD', P .. 'slots')
  return mine == 0 or all >= 2 * most_slots and mine * redis.call('SCARD', P .. 'flying') < most_slots
end

-- Admit rows while there are slots, at most so many, and one of a tenant that goes before.
local function feed(tenant, most)
  if redis.call('EXISTS', P .. 'turns') == 0 then return end
  local most_slots = places()
  if tenant and redis.call('ZSCORE', P .. 'turns', tenant) and goes_before(tenant, most_slots) then
    for _ = 1, TRIES do
      if feed_one(tenant) then break end
    end
  end
  local tries = 0
  while most > 0 and tries < TRIES and redis.call('SCARD', P .. 'slots') < most_slots do
    local next_one = redis.call('ZRANGE', P .. 'turns', 0, 0)[1]
    if not next_one then return end
    if feed_one(next_one) then most = most - 1 else tries = tries + 1 end
  end
end

-- Put all rows of one list into another. Where one is much shorter, only its rows are moved.
local function merge(from, into)
  local long, short, rest_of = redis.call('ZCARD', into), redis.call('ZCARD', from), from .. ':rest'
  if long == 0 then
    redis.call('RENAME', from, into)
    return
  end
  if long < short then
    redis.call('RENAME', into, rest_of)
    redis.call('RENAME', from, into)
    long, short = short, long
  else
    redis.call('RENAME', from, rest_of)
  end
  if short * MUCH_SHORTER > long then
    redis.call('ZUNIONSTORE', into, 2, into, rest_of)
    redis.call('UNLINK', rest_of)
    return
  end
  repeat
    local some, moved = redis.call('ZPOPMIN', rest_of, MOVED_AT_ONCE), {}
    for i = 1, #some, 2 do moved[i], moved[i + 1] = some[i + 1], some[i] end
    redis.call('ZADD', into, unpack(moved))
  until redis.call('EXISTS', rest_of) == 0
end

-- All rows of a batch that wait come to an end with this reason, `also` those of another list. They never become runs, unless
-- they are retried. Answers how many they were.
local function drop_rows(batch, reason, also)
  local key, dropped = P .. 'batch:' .. batch, 0
  local into = key .. ':dropped:' .. reason
  for _, from in ipairs({key .. ':feed', also and key .. also}) do
    local count = redis.call('ZCARD', from)
    if count > 0 then
      merge(from, into)
      dropped = dropped + count
    end
  end
  if dropped > 0 then
    redis.call('HINCRBY', key, 'ended', dropped)
    redis.call('HINCRBY', key, 'stop:' .. reason, dropped)
    rest(batch, redis.call('HGET', key, 'tenant'))
  end
  return dropped
end
