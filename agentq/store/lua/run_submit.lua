-- Create a run: queued, watched, its own limits set. A custom_id makes it unique in its batch or tenant.
-- A batch that somebody else has sealed meanwhile is open again: it is not over before this loader says so too.
--
-- USES  ledger parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 custom_id or ''   3 content hash   4 batch or ''   5 tenant
--       6 scopes, widest first, separated by spaces
--       7 limit in nano-USD or ''   8 limit in tokens or ''
--       9 grace ms until a lost first message is sent again   10 retention ms (in a batch: the batch's)
--      11 n, then n fields and values of the run's hash   then messages: count and items
--         and last the hint to push: count 0 or 2, queue key and message
-- REPLY {"CREATED", run} | {"EXISTS", run} | {"CONFLICT", run}
local id, custom, hash, batch, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local run = run_key(id)
if redis.call('EXISTS', run) == 1 then
  return {redis.call('HGET', run, 'hash') == hash and 'CREATED' or 'CONFLICT', id}
end
local usd_limit = ARGV[7] ~= '' and int(amount(ARGV[7])) or nil
local token_limit = ARGV[8] ~= '' and int(amount(ARGV[8])) or nil
local batch_key = P .. 'batch:' .. batch
local single = P .. 'ids:' .. tenant .. ':' .. custom
if custom ~= '' then
  local known
  if batch ~= '' then known = redis.call('HGET', batch_key .. ':ids', custom) else known = redis.call('GET', single) end
  if known then
    local known_hash, known_run = string.match(known, '^(%S+) (%S+)$')
    return {known_hash == hash and 'EXISTS' or 'CONFLICT', known_run}
  end
end
open_ledger()
local now, ttl = now_ms(), ARGV[10]
local fields, at = take(11)
local messages, hint
messages, at = take(at)
hint = take(at)
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
if usd_limit then redis.call('HSET', scope_key('run:' .. id), 'ul', usd_limit) end
if token_limit then redis.call('HSET', scope_key('run:' .. id), 'tl', token_limit) end
if batch ~= '' then
  if custom ~= '' then redis.call('HSET', batch_key .. ':ids', custom, hash .. ' ' .. id) end
  redis.call('RPUSH', batch_key .. ':runs', id)
  redis.call('SADD', batch_key .. ':open', id)
  redis.call('HINCRBY', batch_key, 'total', 1)
elseif custom ~= '' then
  redis.call('SET', single, hash .. ' ' .. id)
end
redis.call('ZADD', P .. 'watch', int(now + tonumber(ARGV[9])), id)
if #hint > 0 then redis.call('LPUSH', hint[1], hint[2]) end
return {'CREATED', id}
