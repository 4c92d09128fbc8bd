-- Let runs that are parked in a scope make their closing turns: they wait for money no longer.
--
-- USES  ledger reservations fit slots parking operator
-- KEYS  1 routing key
-- ARGV  1 list: a scope or its windows   2 how many at most   3 actor   4 reason   5 operation id
-- REPLY {"OK", how many, how many are left} | {"CONFLICT", what this id has done}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local asked = 'winddown ' .. ARGV[1]
local before = replayed(ARGV[5], asked)
if before then return before end
local list = ARGV[1]
local ids = redis.call('ZRANGE', list_key(list), 0, tonumber(ARGV[2]) - 1)
for _, id in ipairs(ids) do
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'scopes', 'park_unit')
  if f[1] == 'parked' then
    redis.call('HSET', run, 'wind', f[3] .. ' ' .. list)
    resume(id, run, scopes_in(f[2]))
  else
    strike(list, id)
  end
end
if #ids > 0 then
  note('winddown', list, {list}, {}, {'w', int(#ids) .. ' runs', 'a', ARGV[3], 'r', ARGV[4]})
end
return done(ARGV[5], asked, {'OK', #ids, redis.call('ZCARD', list_key(list))})
