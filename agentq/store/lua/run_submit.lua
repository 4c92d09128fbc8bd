-- Create a run: queued, watched, its own limits set. A custom_id makes it unique in its batch or tenant, a child in its
-- parent. A child is no row of its parent's batch: it spends there, and the batch is not over before it is.
-- A batch that somebody else has sealed meanwhile is open again: it is not over before this loader says so too.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 custom_id or ''   3 content hash   4 batch or ''   5 tenant
--       6 scopes, widest first, separated by spaces: of a child, with the `run:` scopes of all its ancestors
--       7 limit in nano-USD or ''   8 limit in tokens or ''
--       9 grace ms until a lost first message is sent again   10 retention ms (in a batch: the batch's; of a child: its parent's)
--      11 n, then n fields and values of the run's hash   then messages: count and items
--         the hint to push: count 0 or 2, queue key and message
--         of a child: count 2, its parent and the fence of the step that starts it or ''
--         of a fork: events of its trace, results that answer equal calls, and decisions: count and items
--         and last, of one that continues a conversation: its long results, reference and text: count and items
-- REPLY {"CREATED", run} | {"EXISTS", run} | {"CONFLICT", run}
--       | {"ORPHAN", state of the parent or ''} (it is not live) | {"STALE"} (the step is somebody else's by now)
--       | {"SCHEMA", version} (the state is newer than this script)
--       | {"CHILDREN", the most that a run may start} | {"DEPTH", the most ancestors}
local CHILDREN_MAX, DEPTH_MAX = 100, 4
local id, custom, hash, batch, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local run = run_key(id)
local newer = too_new()
if newer then return newer end
if redis.call('EXISTS', run) == 1 then
  return {redis.call('HGET', run, 'hash') == hash and 'CREATED' or 'CONFLICT', id}
end
local usd_limit = ARGV[7] ~= '' and int(amount(ARGV[7])) or nil
local token_limit = ARGV[8] ~= '' and int(amount(ARGV[8])) or nil
local batch_key = P .. 'batch:' .. batch
local single = P .. 'ids:' .. tenant .. ':' .. custom
local scopes = scopes_in(ARGV[6])
local fields, at = take(11)
local messages, hint, parent, events
messages, at = take(at)
hint, at = take(at)
parent, at = take(at)
events, at = take(at)
local cached
cached, at = take(at)
local decisions
decisions, at = take(at)
local kept = take(at)
local siblings = parent[1] and run_key(parent[1]) .. ':children'
if custom ~= '' then
  local known
  if siblings then known = redis.call('HGET', siblings, custom)
  elseif batch ~= '' then known = redis.call('HGET', batch_key .. ':ids', custom) else known = redis.call('GET', single) end
  if known then
    local known_hash, known_run = string.match(known, '^(%S+) (%S+)$')
    return {known_hash == hash and 'EXISTS' or 'CONFLICT', known_run}
  end
end
local now, ttl = now_ms(), ARGV[10]
if siblings then
  local p = redis.call('HMGET', run_key(parent[1]), 'state', 'fence', 'children', 'ttl')
  if not p[1] or p[1] == 'ended' or p[1] == 'cancelling' then return {'ORPHAN', p[1] or ''} end
  if parent[2] ~= '' and (p[1] ~= 'running' or p[2] ~= parent[2]) then return {'STALE'} end
  if (tonumber(p[3]) or 0) >= CHILDREN_MAX then return {'CHILDREN', int(CHILDREN_MAX)} end
  if #ancestors_in(scopes) > DEPTH_MAX then return {'DEPTH', int(DEPTH_MAX)} end
  ttl = p[4]
end
open_ledger()
if batch ~= '' then
  local b = redis.call('HMGET', batch_key, 'sealed', 'ttl')
  if b[1] == '1' then unseal(batch) end
  -- A run that outlived its batch would book a late bill on an account that has expired.
  ttl = b[2] or ttl
end
redis.call('HSET', run, 'state', 'queued', 'step', '0', 'phase', 'model', 'fence', '0-', 'hash', hash,
  'custom_id', custom, 'batch', batch, 'tenant', tenant, 'scopes', ARGV[6], 'created', int(now), 'ttl', ttl,
  unpack(fields))
for i = 1, #messages do redis.call('RPUSH', run .. ':msgs', messages[i]) end
for i = 1, #events do redis.call('RPUSH', run .. ':trace', events[i]) end
for i = 1, #cached, 2 do redis.call('HSET', run .. ':cache', cached[i], cached[i + 1]) end
for i = 1, #decisions, 2 do redis.call('HSET', run .. ':decisions', decisions[i], decisions[i + 1]) end
for i = 1, #kept, 2 do redis.call('HSET', run .. ':kept', kept[i], kept[i + 1]) end
if usd_limit then redis.call('HSET', scope_key('run:' .. id), 'ul', usd_limit) end
if token_limit then redis.call('HSET', scope_key('run:' .. id), 'tl', token_limit) end
if siblings then
  redis.call('HSET', run, 'parent', parent[1])
  redis.call('HSET', siblings, custom ~= '' and custom or id, hash .. ' ' .. id)
  redis.call('HINCRBY', run_key(parent[1]), 'children', 1)
  count_descendant(id, scopes, 1)
elseif batch ~= '' then
  if custom ~= '' then redis.call('HSET', batch_key .. ':ids', custom, hash .. ' ' .. id) end
  redis.call('RPUSH', batch_key .. ':runs', id)
  redis.call('SADD', batch_key .. ':open', id)
  redis.call('HINCRBY', batch_key, 'total', 1)
elseif custom ~= '' then
  redis.call('SET', single, hash .. ' ' .. id)
end
redis.call('ZADD', P .. 'watch', int(now + tonumber(ARGV[9])), id)
take_slot(id, tenant, batch)
if #hint > 0 then push_hint(hint[1], hint[2], tenant) end
return {'CREATED', id}
