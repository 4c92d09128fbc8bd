-- Say how much a tenant, or everybody, may have in flight, and what a tenant's turns weigh.
--
-- USES  slots feeder
-- KEYS  1 routing key
-- ARGV  1 tenant, or '' for nobody in particular
--       2 n, then n fields and values: max and weight (of the tenant), max and tenant_max (of all); '' takes one away
-- REPLY {"OK"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local tenant, fields = ARGV[1], take(2)
for i = 1, #fields, 2 do
  local name = tenant == '' and fields[i] or fields[i] .. ':' .. tenant
  if fields[i + 1] == '' then redis.call('HDEL', P .. 'feeder', name)
  elseif redis.call('HGET', P .. 'feeder', name) ~= fields[i + 1] then redis.call('HSET', P .. 'feeder', name, fields[i + 1]) end
end
if tenant ~= '' then
  seat(tenant)
  feed(tenant, FED_AT_ONCE)
end
return {'OK'}
