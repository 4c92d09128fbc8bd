-- What people do to the ledger: each with an operation id, so that it is done once, an actor and a reason. Needs _base,
-- _ledger and _parking.
local REPLAY_KEPT_MS = 7 * 86400000

-- The reply that this operation got before, or nil. `asked` is what it is to do: under the id of another command nothing
-- is done, and that is said.
local function replayed(op, asked)
  local text = redis.call('GET', P .. 'op:' .. op)
  if not text then return nil end
  local before = cjson.decode(text)
  return before.asked == asked and before.reply or {'CONFLICT', before.asked}
end

local function done(op, asked, reply)
  redis.call('SET', P .. 'op:' .. op, cjson.encode({asked = asked, reply = reply}), 'PX', REPLAY_KEPT_MS)
  return reply
end

-- A scope or its window: what is before `@day` or `@month`, and which of them.
local function parts_of(scope)
  local base, window = string.match(scope, '^(.*)@(day)$')
  if not base then base, window = string.match(scope, '^(.*)@(month)$') end
  return base or scope, window
end

local function set_word(scope, word, on)
  local words, kept = redis.call('HGET', scope_key(scope), 'c') or '', {}
  for had in string.gmatch(words, '%a+') do
    if had ~= word then kept[#kept + 1] = had end
  end
  if on then kept[#kept + 1] = word end
  table.sort(kept)
  if #kept == 0 then
    redis.call('HDEL', scope_key(scope), 'c')
  else
    redis.call('HSET', scope_key(scope), 'c', table.concat(kept, ' '))
  end
end

-- After a limit has changed: windows count while they have one, optional scopes are found by new runs, alerts start
-- anew from where the account stands, and who fits now goes on.
local function limit_changed(scope)
  local base, window = parts_of(scope)
  local f = redis.call('HMGET', scope_key(scope), 'ul', 'tl')
  local limited = f[1] or f[2]
  if window then set_word(base, window, limited) end
  if string.find(base, '^agent:') or string.find(base, '^model:') or string.find(base, '^key:') then
    local windows = redis.call('HGET', scope_key(base), 'c') or ''
    local own = redis.call('HMGET', scope_key(base), 'ul', 'tl')
    if own[1] or own[2] or string.find(windows, 'day') or string.find(windows, 'month') then
      redis.call('SADD', P .. 'limited', base)
    else
      redis.call('SREM', P .. 'limited', base)
    end
  end
  local account = window and window_of(base, window) or scope
  if redis.call('EXISTS', scope_key(account)) == 1 then
    local v = redis.call('HMGET', scope_key(account), 'us', 'ts', 'ua', 'ta')
    for i, unit in ipairs({'u', 't'}) do
      local spent, before, limit = tonumber(v[i]) or 0, tonumber(v[2 + i]) or 0, tonumber(f[i])
      local level = alert_level(spent, limit)
      if level ~= before then redis.call('HSET', scope_key(account), unit .. 'a', int(level)) end
      if level > before then alert(account, unit == 'u' and 'usd' or 'tokens', level, spent, limit) end
    end
  end
  -- A run decides by itself, before it asks, whether its own budget is used up: its next claim tells it what that is now.
  local id = string.match(base, '^run:(.*)$')
  if id and redis.call('EXISTS', run_key(id)) == 1 then
    redis.call('HSET', run_key(id), 'limits', (f[1] or '-') .. ' ' .. (f[2] or '-'))
  end
  wake({base})
end

-- The accounts that something booked by hand on a scope belongs to: its own, those around it, and the running windows of
-- all, and the scopes; nil when there is no such run or batch.
local function chain_of(scope)
  local kind, name = string.match(scope, '^(%a+):(.+)$')
  local scopes
  if scope == 'global' then
    scopes = {'global'}
  elseif kind == 'run' then
    local text = redis.call('HGET', run_key(name), 'scopes')
    if not text then return nil end
    scopes = scopes_in(text)
  elseif kind == 'batch' then
    local tenant = redis.call('HGET', P .. 'batch:' .. name, 'tenant')
    if not tenant then return nil end
    scopes = {'global', 'tenant:' .. tenant, scope}
  else
    scopes = {'global', scope}
  end
  return accounts_of(scopes), scopes
end
