-- Book a call again whose reservation a rollback of the server has taken: a fact, and counted once.
--
-- USES  ledger reservations
-- KEYS  1 routing key
-- ARGV  1 run id   2 reservation   3 settle | estimate (by its bill), forfeit (in full, until there is one) or release
--       4 nano-USD   5 tokens   6 the run's scopes, in case that the run is lost too
-- REPLY {"OK"} | {"KNOWN"} (it is in the books already, or nothing was billed) | {"OPEN"} (it was not lost: it closes as any)
-- FLAGS allow-oom
local id, reservation, how = ARGV[1], ARGV[2], ARGV[3]
local usd, tokens = amount(ARGV[4]), amount(ARGV[5])
local run, name = run_key(id), id .. ':' .. reservation
local scopes = scopes_in(redis.call('HGET', run, 'scopes') or ARGV[6])
if redis.call('HEXISTS', run .. ':open', reservation) == 1 then return {'OPEN'} end
if redis.call('HEXISTS', run .. ':forfeits', reservation) == 1 then
  if how == 'forfeit' then return {'KNOWN'} end
  close_reservation(id, run, scopes, reservation, how, usd, tokens)
  return {'OK'}
end
if how == 'release' or how == 'restore' or redis.call('HEXISTS', P .. 'reasserted', name) == 1 then
  return {'KNOWN'}
end
local KEPT_MS = 7 * 86400000
redis.call('HSET', P .. 'reasserted', name, int(usd) .. ' ' .. int(tokens))
redis.call('PEXPIRE', P .. 'reasserted', KEPT_MS)
local accounts, names = accounts_of(scopes), {}
for i, account in ipairs(accounts) do
  names[i] = account.name
  if account.window and redis.call('HSETNX', scope_key(account.name), 'us', '0') == 1 then
    redis.call('PEXPIREAT', scope_key(account.name), int(window_end(account.window) + WINDOW_KEPT_MS))
  end
end
local deltas = {us = usd, ts = tokens}
if how == 'forfeit' then
  deltas.uf = usd
  redis.call('HSET', run .. ':forfeits', reservation, int(usd) .. ' ' .. int(tokens) .. windows_text(accounts))
  if redis.call('PTTL', run) ~= -1 then
    redis.call('PEXPIRE', run .. ':forfeits', int(math.max(redis.call('PTTL', run), KEPT_MS)))
  end
end
post('reassert', name, names, deltas, how == 'estimate' and {'e', '1'} or nil)
-- The account of a run or batch that is lost itself must not stay for ever.
for _, scope in ipairs(scopes) do
  local owned = string.match(scope, '^run:') or string.match(scope, '^batch:')
  if owned and redis.call('EXISTS', P .. scope) == 0 and redis.call('TTL', scope_key(scope)) == -1 then
    redis.call('PEXPIRE', scope_key(scope), KEPT_MS)
  end
end
return {'OK'}
