-- Raise the limits of a scope, or lower them, by an amount. Who waited for that money goes on.
--
-- USES  ledger reservations fit slots parking operator
-- KEYS  1 routing key
-- ARGV  1 operation id   2 actor   3 reason   4 scope   5 nano-USD, with a sign   6 tokens, with a sign
-- REPLY {"OK", limit in nano-USD or '', limit in tokens or ''} | {"NO_LIMIT", unit} | {"BELOW_ZERO", unit, limit}
--       | {"TOO_MUCH", unit, limit} | {"CONFLICT", what this id has done}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local scope = ARGV[4]
local asked = table.concat({'topup', scope, ARGV[5], ARGV[6]}, ' ')
local before = replayed(ARGV[1], asked)
if before then return before end
local deltas = {ul = signed(ARGV[5]), tl = signed(ARGV[6])}
local key, told, new = scope_key(scope), {}, {}
for _, field in ipairs({'ul', 'tl'}) do
  local limit = redis.call('HGET', key, field)
  local unit = field == 'ul' and 'usd' or 'tokens'
  if deltas[field] ~= 0 then
    if not limit then return {'NO_LIMIT', unit} end
    local raised_to = tonumber(limit) + deltas[field]
    if raised_to < 0 then return {'BELOW_ZERO', unit, limit} end
    if raised_to > 9007199254740991 then return {'TOO_MUCH', unit, limit} end
    new[field] = int(raised_to)
    told[#told + 1] = field .. ' ' .. limit .. ' ' .. new[field]
  end
end
if #told > 0 then
  for field, limit in pairs(new) do redis.call('HSET', key, field, limit, 'd' .. field, '-') end
  note('topup', scope, {scope}, {}, {'w', table.concat(told, ', '), 'a', ARGV[2], 'r', ARGV[3]})
  limit_changed(scope)
end
local f = redis.call('HMGET', key, 'ul', 'tl')
return done(ARGV[1], asked, {'OK', f[1] or '', f[2] or ''})
