-- Which members of an index do not belong there, at one instant; with repair they are taken out.
--
-- USES  ledger reservations fit slots parking
-- KEYS  1 routing key
-- ARGV  1 index: watch | inbox | parked:<list> | slots | slots:t:<tenant> | slots:b:<batch> | flying | batch:<b>:open |
--         batch:<b>:delayed | batch:<b>:feed | batch:<b>:loading | batch:<b>:dropped:<reason>   2 1 to repair, or ''   3 and on: members that it had
-- REPLY {"SCHEMA", version} (the state is newer than this script)
--       | {"OK", 1 when it is a list of parked runs that `parked` does not have, or miscounts, else 0, run, …}
-- FLAGS allow-oom
local index, repair = ARGV[1], ARGV[2] == '1'
local key, list = P .. index, string.match(index, '^parked:(.*)$')
local batch, part = string.match(index, '^batch:([^:]+):([^:]+)')
local kind, name = string.match(index, '^slots:(.):(.*)$')
local is_set = part == 'open' or part == 'delayed' or kind or index == 'slots' or index == 'flying'

local newer = too_new()
if newer then return newer end

local function is_member(id)
  if is_set then return redis.call('SISMEMBER', key, id) == 1 end
  return redis.call('ZSCORE', key, id) ~= false
end

local function belongs(id)
  if index == 'flying' then return redis.call('EXISTS', P .. 'slots:t:' .. id) == 1 end
  -- A row that has no content either is no stray: nothing would say of it any more that it was there.
  if batch and not is_set then return redis.call('EXISTS', run_key(id)) == 0 end
  if index == 'slots' then return redis.call('EXISTS', run_key(id)) == 1 end
  if kind then
    local of = redis.call('HGET', run_key(id), kind == 't' and 'tenant' or 'batch')
    return of == name and redis.call('SISMEMBER', P .. 'slots', id) == 1
  end
  local f = redis.call('HMGET', run_key(id), 'state', 'park_scope', 'gathering', 'batch')
  if list then return f[1] == 'parked' and f[2] == list end
  if index == 'inbox' then return f[1] == 'waiting' and not f[3] end
  if part == 'delayed' then
    return f[1] == 'queued' and f[4] == batch and redis.call('SISMEMBER', P .. 'slots', id) == 0
  end
  return f[1] and f[1] ~= 'ended' and (not batch or f[4] == batch)
end

local function take_out(id)
  if list then strike(list, id) elseif is_set then redis.call('SREM', key, id) else redis.call('ZREM', key, id) end
end

local reply = {'OK', 0}
if list and redis.call('EXISTS', key) == 1 then
  local known = redis.call('SISMEMBER', P .. 'parked', list) == 1
  if not known or tonumber(redis.call('HGET', LEDGER, 'parked')) ~= redis.call('SCARD', P .. 'parked') then
    reply[2] = 1
    if repair then
      redis.call('SADD', P .. 'parked', list)
      redis.call('HSET', LEDGER, 'parked', redis.call('SCARD', P .. 'parked'))
    end
  end
end
for i = 3, #ARGV do
  local id = ARGV[i]
  if is_member(id) and not belongs(id) then
    reply[#reply + 1] = id
    if repair then take_out(id) end
  end
end
return reply
