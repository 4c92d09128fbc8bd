-- Set the limits of a scope. An empty value takes the limit away, '=' leaves it as it is.
--
-- KEYS  1 routing key
-- ARGV  1 scope   2 limit in nano-USD, '' or '='   3 limit in tokens, '' or '='
-- REPLY {"OK"}
local scope = scope_key(ARGV[1])
local limits = {}
for i = 2, 3 do limits[i] = (ARGV[i] == '' or ARGV[i] == '=') and ARGV[i] or int(amount(ARGV[i])) end
for i, field in ipairs({'ul', 'tl'}) do
  local limit = limits[i + 1]
  if limit == '' then
    redis.call('HDEL', scope, field)
  elseif limit ~= '=' and redis.call('HGET', scope, field) ~= limit then
    redis.call('HSET', scope, field, limit)
  end
end
return {'OK'}
