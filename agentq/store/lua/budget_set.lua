-- Set the limits of a scope or of its windows (`tenant:acme@day`), and what it means when they are reached.
--
-- USES  ledger reservations fit slots parking operator
-- KEYS  1 routing key
-- ARGV  1 operation id   2 actor   3 reason   4 scope   5 limit in nano-USD, '' for none, '=' as it is   6 likewise tokens
--       7 park, stop, winddown, '' for the run's own choice, '=' as it is
--       8 1: a default, which never goes over what an operator has set, else 0
-- REPLY {"OK"} | {"CONFLICT", what this id has done}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local scope, default = ARGV[4], ARGV[8] == '1'
local asked = table.concat({'set', scope, ARGV[5], ARGV[6], ARGV[7]}, ' ')
local before = not default and replayed(ARGV[1], asked)
if before then return before end
local wanted = {}
for i, field in ipairs({'ul', 'tl'}) do
  local text = ARGV[4 + i]
  if text ~= '=' then wanted[field] = text == '' and '' or int(amount(text)) end
end
open_ledger()
local key, told = scope_key(scope), {}
for _, field in ipairs({'ul', 'tl'}) do
  local limit = wanted[field]
  if limit then
    local f = redis.call('HMGET', key, field, 'd' .. field)
    local now, by_default = f[1] or '', f[2] or ''
    -- A default stands as long as nobody has touched it; `-` says that an operator has.
    if default and now ~= by_default then limit = now end
    if not default then
      redis.call('HSET', key, 'd' .. field, '-')
    elseif limit ~= now then
      redis.call('HSET', key, 'd' .. field, limit)
    end
    if limit ~= now then
      if limit == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, limit) end
      told[#told + 1] = field .. ' ' .. (now == '' and '-' or now) .. ' ' .. (limit == '' and '-' or limit)
    end
  end
end
if ARGV[7] ~= '=' then
  local f, now, chosen = redis.call('HMGET', key, 'c', 'dc'), '', ARGV[7]
  for _, word in ipairs({'park', 'stop', 'winddown'}) do
    if string.find(f[1] or '', word, 1, true) then now = word end
  end
  if default and now ~= (f[2] or '') then chosen = now end
  if not default then
    redis.call('HSET', key, 'dc', '-')
  elseif chosen ~= now then
    redis.call('HSET', key, 'dc', chosen)
  end
  if chosen ~= now then
    for _, word in ipairs({'park', 'stop', 'winddown'}) do set_word(scope, word, word == chosen) end
    told[#told + 1] = 'on_exhausted ' .. (now == '' and '-' or now) .. ' ' .. (chosen == '' and '-' or chosen)
  end
end
if #told > 0 then
  note('limit', scope, {scope}, {}, {'w', table.concat(told, ', '), 'a', ARGV[2], 'r', ARGV[3]})
  limit_changed(scope)
end
if not default then done(ARGV[1], asked, {'OK'}) end
return {'OK'}
