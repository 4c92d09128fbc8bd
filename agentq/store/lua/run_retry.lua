-- Reopen a run that has ended: from its last committed step, before its closing turn. It is another generation of the
-- same run: what it has spent and done stays.
--
-- USES  ledger reservations fit slots parking runs operator
-- KEYS  1 routing key
-- ARGV  1 run id   2 operation id   3 generation that the caller has seen   4 head of the thread   5 messages to keep
--       6 limit in nano-USD, '-' for none, '' as it was   7 the same in tokens   8 trace event
--       9 who asked   10 n, then n fields and values of the run's hash
-- REPLY {"RETRIED", step} | {"CANCELLING", batch} (it is cancelled and has live rows: with this one they would go on)
--       | {"LIVE", state} | {"CHANGED"} (since the caller has looked) | {"GONE", what is missing}
--       | {"ORPHAN", state of the parent or ''} (it is not live) | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local id, op = ARGV[1], ARGV[2]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'op', 'generation', 'batch', 'custom_id', 'tenant', 'parent', 'stop_reason',
  'step', 'scopes', 'fence', 'counted')
if not f[1] then return {'MISSING'} end
if f[2] == op then return {'RETRIED', f[9]} end
if f[1] ~= 'ended' then return {'LIVE', f[1]} end
if (f[3] or '0') ~= ARGV[3] then return {'CHANGED'} end
local keep = tonumber(ARGV[5])
if keep == 0 or redis.call('LLEN', run .. ':msgs') < keep then return {'GONE', 'messages'} end
if redis.call('EXISTS', scope_key('run:' .. id)) == 0 then return {'GONE', 'account'} end
local batch = f[4] ~= '' and P .. 'batch:' .. f[4]
if batch and redis.call('EXISTS', batch) == 0 then return {'GONE', 'batch'} end
if batch and redis.call('HEXISTS', batch, 'cancelled') == 1 and redis.call('SCARD', batch .. ':open') > 0 then
  return {'CANCELLING', f[4]}
end
local scopes = scopes_in(f[10])
local wanted = {ul = ARGV[6], tl = ARGV[7]}
for name, limit in pairs(wanted) do
  if limit ~= '' and limit ~= '-' then wanted[name] = int(amount(limit)) end
end
if f[7] then
  local state = redis.call('HGET', run_key(f[7]), 'state')
  if not state or state == 'ended' or state == 'cancelling' then return {'ORPHAN', state or ''} end
end
local now = now_ms()
for _, part in ipairs(RUN_PARTS) do redis.call('PERSIST', run .. part) end
persist_account('run:' .. id)
redis.call('LTRIM', run .. ':msgs', 0, keep - 1)
redis.call('RPUSH', run .. ':trace', ARGV[8])
local own, told = 'run:' .. id, {}
for _, name in ipairs({'ul', 'tl'}) do
  local limit, had = wanted[name], redis.call('HGET', scope_key(own), name) or '-'
  if limit ~= '' and limit ~= had then
    if limit == '-' then redis.call('HDEL', scope_key(own), name)
    else redis.call('HSET', scope_key(own), name, limit) end
    told[#told + 1] = name .. ' ' .. had .. ' ' .. limit
  end
end
if #told > 0 then
  note('limit', own, {own}, {}, {'w', table.concat(told, ', '), 'a', ARGV[9], 'r', 'retry'})
  limit_changed(own)
end
redis.call('HDEL', run, 'stop_reason', 'stop_scope', 'stop_detail', 'stopped_at', 'answer', 'output', 'ended',
  'reopen', 'reopen_head', 'failures', 'unclear', 'failing', 'error', 'deaths', 'counted')
local fields = take(10)
redis.call('HSET', run, 'state', 'queued', 'op', op, 'generation', int(tonumber(ARGV[3]) + 1), 'head', ARGV[4],
  'fence', raised(f[11]), 'not_before', int(now), unpack(fields))
-- What was approved stays so; what was refused, or not decided in time, is asked again.
local decisions = redis.call('HGETALL', run .. ':decisions')
for i = 2, #decisions, 2 do
  if cjson.decode(decisions[i]).verdict ~= 'approve' then redis.call('HDEL', run .. ':decisions', decisions[i - 1]) end
end
if batch then
  -- PART counters
  redis.call('HDEL', batch, 'cancelled', 'told')
  persist_batch(f[4])
  redis.call('SADD', batch .. ':open', id)
  redis.call('HINCRBY', batch, 'ended', -1)
  if redis.call('HINCRBY', batch, 'stop:' .. f[8], -1) == 0 then redis.call('HDEL', batch, 'stop:' .. f[8]) end
  add_up(batch, f[12] or '', '-')
elseif f[5] ~= '' and not f[7] then
  redis.call('PERSIST', P .. 'ids:' .. f[6] .. ':' .. f[5])
end
if f[7] then count_descendant(id, scopes, 1) end
take_slot(id, f[6], f[4])
redis.call('ZADD', P .. 'watch', int(now), id)
return {'RETRIED', f[9]}
