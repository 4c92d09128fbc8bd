-- Hold one run against what is true of every run, at one instant, and put right what can be without a loss.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 1 to repair, or ''   3 ms after which a run that is due, and at which nobody has looked, is a finding
-- REPLY {"SCHEMA", version} (the state is newer than this script) | {"GONE"}
--       | {"OK", state or '', parent or '', {finding, detail, 1 when it was repaired, …}}
-- FLAGS allow-oom
local id, repair, late_ms = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local run, watch, now = run_key(id), P .. 'watch', now_ms()
local f = redis.call('HMGET', run, 'state', 'parent', 'scopes', 'fence', 'batch', 'tenant', 'custom_id', 'ttl', 'paused',
  'deadline', 'gathering', 'park_scope', 'parked', 'descendants', 'stop_reason')
local state, batch = f[1], f[5] or ''
local newer = too_new()
if newer then return newer end
if redis.call('EXISTS', run) == 0 then return {'GONE'} end

local found = {}
-- `mend` puts it right; without one a person must.
local function find(code, detail, mend)
  if mend and repair then mend() end
  for _, part in ipairs({code, detail, mend and repair and 1 or 0}) do found[#found + 1] = part end
end
local function answer() return {'OK', state or '', f[2] or '', found} end
local function look_now() redis.call('ZADD', watch, int(now), id) end

local LIVE = {queued = true, running = true, cancelling = true, parked = true, waiting = true, held = true}
if not LIVE[state] and state ~= 'ended' then
  find('state', state or 'none')
  return answer()
end
local live, at_work = LIVE[state], state == 'running' or state == 'cancelling'

-- ── its place ───────────────────────────────────────────────────────────────────────────────────
local due = tonumber(redis.call('ZSCORE', watch, id))
if live and not due then find('unwatched', state, look_now)
elseif live and now - due > late_ms then find('overdue', int(math.floor((now - due) / 1000))) end

if at_work and (fence_nonce(f[4] or '') or '') == '' then find('no_holder', f[4] or '') end
if state == 'ended' and not f[15] then find('no_reason', '') end
if state == 'parked' and not f[12] then find('unlisted', 'none')
elseif state == 'parked' and not redis.call('ZSCORE', list_key(f[12]), id) then
  find('unlisted', f[12], function() enlist(f[12], id, f[13] or now) end)
end
if state == 'held' and due and due > now + HELD_LOOK_MS and not is_paused(f[9], batch) then
  find('not_paused', '', look_now)
end

-- ── its slot ────────────────────────────────────────────────────────────────────────────────────
-- A run whose delay is over takes its slot with its first hint, or where it is claimed: until then it may be without.
local slotted, of_tenant, of_batch = redis.call('SISMEMBER', P .. 'slots', id) == 1, P .. 'slots:t:' .. (f[6] or ''),
  P .. 'slots:b:' .. batch
local delayed_till = tonumber(redis.call('HGET', run, 'not_before'))
if (at_work or state == 'queued' and not delayed_till) and not slotted then
  find('no_slot', state, function() take_slot_again(id, run) end)
elseif slotted and not at_work and (state ~= 'queued' or (delayed_till or 0) > now) then
  find('slot', state, function() return_slot(id, run) end)
elseif slotted and (redis.call('SISMEMBER', of_tenant, id) == 0 or redis.call('SISMEMBER', P .. 'flying', f[6] or '') == 0
    or batch ~= '' and redis.call('SISMEMBER', of_batch, id) == 0) then
  find('half_slot', f[6] or '', function()
    redis.call('SREM', P .. 'slots', id)
    take_slot_again(id, run)
  end)
end

-- ── whom it waits for ───────────────────────────────────────────────────────────────────────────
if state == 'waiting' then
  if not f[10] then find('no_deadline', '') end
  if f[11] then
    local awaited = false
    for _, child in ipairs(redis.call('SMEMBERS', run .. ':awaits')) do
      awaited = awaited or LIVE[redis.call('HGET', run_key(child), 'state')]
    end
    if not awaited and due and due > now then find('nothing_awaited', '', look_now) end
  elseif not redis.call('ZSCORE', P .. 'inbox', id) then
    find('not_in_inbox', '', function() redis.call('ZADD', P .. 'inbox', int(now), id) end)
  end
end

-- ── what it holds ───────────────────────────────────────────────────────────────────────────────
local reservations = {}
for _, name in ipairs(redis.call('HKEYS', run .. ':open')) do
  if name ~= 'n' and name ~= 'escrow' then reservations[#reservations + 1] = name end
end
if #reservations > 0 and not at_work then
  find('reservation', table.concat(reservations, ' '), function() forfeit_open(id, run, scopes_in(f[3])) end)
end
local own, has_escrow = escrow_of(run)
if has_escrow and not live then find('escrow', int(own.usd) .. ' nano-USD, ' .. int(own.tokens) .. ' tokens') end

-- ── those below it ──────────────────────────────────────────────────────────────────────────────
-- A child's own count, and its own account, stand for all that is below the child.
local below, usd, tokens = 0, is_idle(state) and own.usd or 0, is_idle(state) and own.tokens or 0
for _, text in ipairs(redis.call('HVALS', run .. ':children')) do
  local child = string.match(text, '%S+$')
  local c = redis.call('HMGET', run_key(child), 'state', 'descendants')
  below = below + (LIVE[c[1]] and 1 or 0) + (tonumber(c[2]) or 0)
  local a = redis.call('HMGET', scope_key('run:' .. child), 'ui', 'ti')
  usd, tokens = usd + (tonumber(a[1]) or 0), tokens + (tonumber(a[2]) or 0)
end
local says = tonumber(f[14]) or 0
if says ~= below then
  find('descendants', int(says) .. ', and has ' .. int(below), function()
    redis.call('HSET', run, 'descendants', int(below))
    says = below
  end)
end
local account = redis.call('HMGET', scope_key('run:' .. id), 'ui', 'ti')
local idle_usd, idle_tokens = tonumber(account[1]) or 0, tonumber(account[2]) or 0
if idle_usd ~= usd or idle_tokens ~= tokens then
  find('idle', int(idle_usd) .. ' nano-USD and ' .. int(idle_tokens) .. ' tokens, and it is ' .. int(usd) .. ' and '
    .. int(tokens))
end

-- ── its batch ───────────────────────────────────────────────────────────────────────────────────
if live and batch ~= '' then
  local open = P .. 'batch:' .. batch .. ':open'
  if redis.call('EXISTS', P .. 'batch:' .. batch) == 0 then find('no_batch', batch)
  elseif redis.call('SISMEMBER', open, id) == 0 then
    find('not_open', batch, function() redis.call('SADD', open, id) end)
  end
end

-- ── when its keys end ───────────────────────────────────────────────────────────────────────────
local keys = {run .. ':open', run .. ':awaits', scope_key('run:' .. id), P .. 'checkpoint:run:' .. id}
for _, part in ipairs(RUN_PARTS) do keys[#keys + 1] = run .. part end
if batch == '' and (f[7] or '') ~= '' and not f[2] then
  local ids = P .. 'ids:' .. (f[6] or '') .. ':' .. f[7]
  if string.match(redis.call('GET', ids) or '', '%S+$') == id then keys[#keys + 1] = ids end
end
local over = not live and says == 0
local wrong, kept = {}, f[8] or '604800000'
for _, key in ipairs(keys) do
  local ttl = redis.call('PTTL', key)
  if (over and ttl == -1) or (not over and ttl >= 0) then wrong[#wrong + 1] = key end
end
if #wrong > 0 then
  find(over and 'endless' or 'vanishing', string.sub(wrong[1], #P + 1), function()
    for _, key in ipairs(wrong) do
      if over then redis.call('PEXPIRE', key, kept) else redis.call('PERSIST', key) end
    end
  end)
end
return answer()
