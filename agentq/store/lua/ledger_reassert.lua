-- Book what a call has cost whose reservation the server has forgotten. A fact, and counted once.
--
-- USES  ledger
-- KEYS  1 routing key
-- ARGV  1 run id   2 reservation   3 nano-USD   4 tokens   5 the run's scopes, in case that the run is forgotten too
-- REPLY {"OK"} | {"KNOWN"} (it is in the books already)
-- FLAGS allow-oom
local id, reservation = ARGV[1], ARGV[2]
local run, name = run_key(id), ARGV[1] .. ':' .. ARGV[2]
local usd, tokens = amount(ARGV[3]), amount(ARGV[4])
if redis.call('HEXISTS', run .. ':open', reservation) == 1 or redis.call('HEXISTS', run .. ':forfeits', reservation) == 1
  or redis.call('HEXISTS', P .. 'reasserted', name) == 1 then
  return {'KNOWN'}
end
redis.call('HSET', P .. 'reasserted', name, int(usd) .. ' ' .. int(tokens))
redis.call('PEXPIRE', P .. 'reasserted', 7 * 86400000)
local scopes = scopes_in(redis.call('HGET', run, 'scopes') or ARGV[5])
post('reassert', name, scopes, {us = usd, ts = tokens})
-- The account of a run that is gone must not stay for ever.
local account = scope_key('run:' .. id)
if redis.call('EXISTS', run) == 0 and redis.call('TTL', account) == -1 then
  redis.call('PEXPIRE', account, 7 * 86400000)
end
return {'OK'}
