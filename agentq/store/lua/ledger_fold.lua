-- Add the oldest entries of the log into the checkpoint and trim them, when there are more than are kept. Not while somebody
-- verifies, nor what an exporter has not read.
--
-- KEYS  1 routing key
-- ARGV  1 how many entries are kept   2 how many to fold at most
-- REPLY {"OK", how many were folded}
-- FLAGS allow-oom
local log = P .. 'log'
local f = redis.call('HMGET', LEDGER, 'pinned', 'exported', 'folded')
local spare = redis.call('XLEN', log) - tonumber(ARGV[1])
if spare <= 0 or (tonumber(f[1]) or 0) > now_ms() then return {'OK', 0} end
local count = math.min(spare, tonumber(ARGV[2]))
local entries = redis.call('XRANGE', log, '-', '+', 'COUNT', count)
local sums, folded, last = {}, 0, nil
for _, entry in ipairs(entries) do
  local seq = tonumber(string.match(entry[1], '%-(%d+)$'))
  if f[2] and seq > tonumber(f[2]) then break end
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  for account in string.gmatch(fields.s, '%S+') do
    sums[account] = sums[account] or {}
    for name, delta in string.gmatch(fields.d, '(%a+) (-?%d+)') do
      sums[account][name] = (sums[account][name] or 0) + tonumber(delta)
    end
  end
  folded, last = folded + 1, seq
end
if folded == 0 then return {'OK', 0} end
for account, fields in pairs(sums) do
  local ttl = redis.call('PTTL', scope_key(account))
  -- An account that has expired is nobody's any more.
  if ttl ~= -2 then
    local key = P .. 'checkpoint:' .. account
    for name, delta in pairs(fields) do
      redis.call('HSET', key, name, int((tonumber(redis.call('HGET', key, name)) or 0) + delta))
    end
    if ttl > 0 then redis.call('PEXPIRE', key, ttl) end
  end
end
redis.call('XTRIM', log, 'MINID', '1-' .. int(last + 1))
redis.call('HSET', LEDGER, 'folded', int(last))
return {'OK', folded}
