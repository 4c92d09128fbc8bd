-- Add the oldest entries of the log into the checkpoint and trim them, when there are more than are kept. Not while somebody
-- verifies. What an exporter has not read yet stays too, up to ten times as many entries as are kept.
--
-- USES  ledger reservations
-- KEYS  1 routing key
-- ARGV  1 how many entries are kept   2 how many to fold at most
-- REPLY {"OK", how many were folded}
-- FLAGS allow-oom
local log, kept = P .. 'log', tonumber(ARGV[1])
local f = redis.call('HMGET', LEDGER, 'pinned', 'exported', 'folded', 'overrun')
local length = redis.call('XLEN', log)
if length <= kept or (tonumber(f[1]) or 0) > now_ms() then return {'OK', 0} end
local count = math.min(length - kept, tonumber(ARGV[2]))
local before = tonumber(f[3]) or 0
if f[2] then
  local read = math.max(0, tonumber(f[2]) - before)
  local forced = math.min(length - 10 * kept, count)
  if forced > read and now_ms() - (tonumber(f[4]) or 0) > 3600000 then
    redis.call('HSET', LEDGER, 'overrun', int(now_ms()))
    announce({event = 'ledger_export_overrun', exported = f[2], folded = int(before + forced)})
  end
  count = math.min(count, math.max(read, forced))
end
if count <= 0 then return {'OK', 0} end
local sums, opened, last = {}, {}, before

-- Most entries of a run change the same accounts: they are added up before they are spread over these.
local groups = {}
local function spread()
  for accounts, group in pairs(groups) do
    for account in string.gmatch(accounts, '%S+') do
      local sum = sums[account] or {}
      sums[account] = sum
      for name, delta in pairs(group) do sum[name] = (sum[name] or 0) + delta end
    end
  end
  groups = {}
end

local entries = redis.call('XRANGE', log, '-', '+', 'COUNT', count)
for _, entry in ipairs(entries) do
  last = tonumber(string.match(entry[1], '%-(%d+)$'))
  local fields, list = {}, entry[2]
  for i = 1, 8, 2 do fields[list[i]] = list[i + 1] end
  if fields.o == 'open' then
    -- Another account may have had this name, and expired.
    spread()
    sums[fields.s], opened[fields.s] = {}, true
  elseif fields.d ~= '' then
    local group = groups[fields.s] or {}
    groups[fields.s] = group
    for name, delta in string.gmatch(fields.d, '(%a+) (-?%d+)') do group[name] = (group[name] or 0) + tonumber(delta) end
  end
end
spread()
for account, sum in pairs(sums) do
  local ttl = redis.call('PTTL', scope_key(account))
  local key = P .. 'checkpoint:' .. account
  if opened[account] then redis.call('DEL', key) end
  local names, args = changed(sum), {}
  -- An account that has expired is nobody's any more.
  if ttl ~= -2 and #names > 0 then
    local values = redis.call('HMGET', key, unpack(names))
    for i, name in ipairs(names) do
      args[2 * i - 1], args[2 * i] = name, int((tonumber(values[i]) or 0) + sum[name])
    end
    redis.call('HSET', key, unpack(args))
    if ttl > 0 then redis.call('PEXPIRE', key, ttl) end
  end
end
redis.call('XTRIM', log, 'MINID', '0-' .. int(last + 1))
redis.call('HSET', LEDGER, 'folded', int(last))
return {'OK', #entries}
