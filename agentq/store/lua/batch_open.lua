-- Open a batch for loading: create it, or take it up again when it is the same one.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 agent, '' for several   3 tenant   4 limit in nano-USD or ''   5 limit in tokens or ''   6 retention ms
--       7 who loads   8 for how long he need not be heard of, ms   9 a loader that is known to be dead, or ''
--       then n, and n fields and values of a batch that is new, or had no row so far: max_in_flight, max_open, priority,
--       at, notify, pilot (how many rows are its sample), confirm_above
-- REPLY {"OPEN", total, serial, now} | {"CONFLICT", field, present value} | {"LOADING", who} (somebody else loads it)
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local name, agent, tenant = ARGV[1], ARGV[2], ARGV[3]
local batch, scope = P .. 'batch:' .. name, scope_key('batch:' .. name)
local loader, fields, wanted, now = ARGV[7], take(10), {}, now_ms()
local function loaded_from_now_on(was)
  redis.call('HSET', batch, 'loader', loader .. ' ' .. int(now + tonumber(ARGV[8])) .. ' ' .. was, unpack(fields))
  if redis.call('HEXISTS', batch, 'pilot') == 1 then redis.call('SADD', P .. 'pilots', name) end
end
-- What the ids of its rows end with. A batch of a release that had no rows gets one with its first.
local function new_serial()
  local serial = int(redis.call('HINCRBY', P .. 'feeder', 'serial', 1))
  redis.call('SET', P .. 'serial:' .. serial, name)
  redis.call('HSET', batch, 'serial', serial)
  return serial
end
if ARGV[4] ~= '' then wanted[#wanted + 1] = {'ul', int(amount(ARGV[4]))} end
if ARGV[5] ~= '' then wanted[#wanted + 1] = {'tl', int(amount(ARGV[5]))} end
if redis.call('EXISTS', batch) == 1 then
  local f = redis.call('HMGET', batch, 'agent', 'tenant', 'total', 'loader', 'serial', 'sealed', 'priority')
  if agent ~= '' and f[1] ~= '' and f[1] ~= agent then return {'CONFLICT', 'agent', f[1]} end
  if f[2] ~= tenant then return {'CONFLICT', 'tenant', f[2]} end
  for _, w in ipairs(wanted) do
    local has = redis.call('HGET', scope, w[1])
    if has ~= w[2] then return {'CONFLICT', w[1], has or ''} end
  end
  local other, till, was = string.match(f[4] or '', '^(%S+) (%d+) (.)$')
  if other and other ~= loader and other ~= ARGV[9] and tonumber(till) > now then return {'LOADING', other} end
  -- One that is cancelled stays so until the seal: a load that is refused lets none of its runs go on.
  redis.call('HDEL', batch, 'sealed')
  persist_batch(name)
  -- Without a row it is as good as new: its first load was killed before one was in, and may have asked for other things.
  if f[3] == '0' then redis.call('HDEL', batch, 'pilot') else fields = {} end
  loaded_from_now_on(was or (f[6] == '1' and '1' or '0'))
  return {'OPEN', f[3], f[5] or new_serial(), int(now)}
end
open_ledger()
-- The account of a batch that had this name may be there for a moment yet: what is set now must not go with it.
for _, account in ipairs({'batch:' .. name, 'batch:' .. name .. '@day', 'batch:' .. name .. '@month'}) do
  for _, key in ipairs({scope_key(account), P .. 'checkpoint:' .. account}) do
    if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
  end
end
local serial = new_serial()
redis.call('HSET', batch, 'agent', agent, 'tenant', tenant, 'total', '0', 'ended', '0', 'created', int(now), 'ttl', ARGV[6])
loaded_from_now_on('0')
local told = {}
for i, w in ipairs(wanted) do
  redis.call('HSET', scope, w[1], w[2])
  told[i] = w[1] .. ' - ' .. w[2]
end
-- Its account begins at nothing, whatever the log says of a batch that had this name before.
note('open', 'batch:' .. name, {'batch:' .. name}, {}, {'w', table.concat(told, ', ')})
redis.call('ZADD', P .. 'batches', int(now), name)
return {'OPEN', '0', serial, int(now)}
