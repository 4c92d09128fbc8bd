-- Set the limits of a scope. An empty value takes the limit away.
--
-- KEYS  1 routing key
-- ARGV  1 scope   2 limit in nano-USD or ''   3 limit in tokens or ''
-- REPLY {"OK"}
local scope = scope_key(ARGV[1])
for i, field in ipairs({'ul', 'tl'}) do
  local value = ARGV[i + 1]
  if value == '' then
    redis.call('HDEL', scope, field)
  else
    local limit = int(amount(value))
    if redis.call('HGET', scope, field) ~= limit then redis.call('HSET', scope, field, limit) end
  end
end
return {'OK'}
