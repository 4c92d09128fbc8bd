-- Open a batch for loading: create it, or take it up again when it is the same one.
--
-- USES  ledger reservations fit parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 agent, '' for several   3 tenant   4 limit in nano-USD or ''   5 limit in tokens or ''   6 retention ms
-- REPLY {"OPEN", total} | {"CONFLICT", field, present value}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local name, agent, tenant = ARGV[1], ARGV[2], ARGV[3]
local batch, scope = P .. 'batch:' .. name, scope_key('batch:' .. name)
local wanted = {}
if ARGV[4] ~= '' then wanted[#wanted + 1] = {'ul', int(amount(ARGV[4]))} end
if ARGV[5] ~= '' then wanted[#wanted + 1] = {'tl', int(amount(ARGV[5]))} end
if redis.call('EXISTS', batch) == 1 then
  local f = redis.call('HMGET', batch, 'agent', 'tenant', 'total')
  if agent ~= '' and f[1] ~= '' and f[1] ~= agent then return {'CONFLICT', 'agent', f[1]} end
  if f[2] ~= tenant then return {'CONFLICT', 'tenant', f[2]} end
  for _, w in ipairs(wanted) do
    local has = redis.call('HGET', scope, w[1])
    if has ~= w[2] then return {'CONFLICT', w[1], has or ''} end
  end
  unseal(name)
  return {'OPEN', f[3]}
end
open_ledger()
local now = now_ms()
redis.call('HSET', batch, 'agent', agent, 'tenant', tenant, 'total', '0', 'ended', '0', 'created', int(now), 'ttl', ARGV[6])
local told = {}
for i, w in ipairs(wanted) do
  redis.call('HSET', scope, w[1], w[2])
  told[i] = w[1] .. ' - ' .. w[2]
end
-- Its account begins at nothing, whatever the log says of a batch that had this name before.
note('open', 'batch:' .. name, {'batch:' .. name}, {}, {'w', table.concat(told, ', ')})
redis.call('ZADD', P .. 'batches', int(now), name)
return {'OPEN', '0'}
