-- Book something by hand: a charge that agentq did not make, or a correction with a sign. In the scope, in those around it,
-- and in their running windows. A fact, so it is not refused for want of budget.
--
-- USES  ledger reservations fit slots parking operator
-- KEYS  1 routing key
-- ARGV  1 operation id   2 actor   3 reason   4 scope   5 charge or adjust   6 nano-USD, with a sign   7 tokens, with a sign
-- REPLY {"OK", spent nano-USD, spent tokens} | {"MISSING"} (no such run or batch)
--       | {"BELOW_ZERO", account} (more would be taken back than was spent there) | {"CONFLICT", what this id has done}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local asked = table.concat({ARGV[5], ARGV[4], ARGV[6], ARGV[7]}, ' ')
local before = replayed(ARGV[1], asked)
if before then return before end
local usd, tokens = signed(ARGV[6]), signed(ARGV[7])
open_ledger()
local accounts, scopes = chain_of(ARGV[4])
if not accounts then return {'MISSING'} end
local spent, names = nil, {}
for i, a in ipairs(accounts) do
  local after = {(tonumber(a[USD_SPENT]) or 0) + usd, (tonumber(a[TOKEN_SPENT]) or 0) + tokens}
  if after[1] < 0 or after[2] < 0 then return {'BELOW_ZERO', a.name} end
  if a.name == ARGV[4] then spent = after end
  names[i] = a.name
end
for _, a in ipairs(accounts) do
  if a.window and not a[USD_SPENT] then
    redis.call('HSET', scope_key(a.name), 'us', '0')
    redis.call('PEXPIREAT', scope_key(a.name), int(window_end(a.window) + WINDOW_KEPT_MS))
  end
end
post(ARGV[5], ARGV[4], names, {us = usd, ts = tokens}, {'a', ARGV[2], 'r', ARGV[3]})
if usd < 0 or tokens < 0 then wake(scopes) end
return done(ARGV[1], asked, {'OK', int(spent[1]), int(spent[2])})
