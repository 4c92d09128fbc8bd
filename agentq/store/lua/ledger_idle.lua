-- What idle runs hold (parked, waiting or held), beside what the accounts say that such runs hold, and whether each list
-- of parked runs has only those that wait there. Nothing is compared where more runs live than may be read in one script.
--
-- USES  ledger reservations fit slots parking
-- KEYS  1 routing key
-- ARGV  1 the most live runs to read   2 and on: accounts that say that idle runs hold something
-- REPLY {"OK", {account, nano-USD by the runs, by the account, tokens by the runs, by the account, …}, {list, run, …} of those
--       that are in a list by mistake} | {"TOO_MANY", live runs}
-- FLAGS no-writes
local live = redis.call('ZCARD', P .. 'watch')
if live > tonumber(ARGV[1]) then return {'TOO_MANY', live} end
local sums = {}
for i = 2, #ARGV do sums[ARGV[i]] = {0, 0} end
for _, id in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'scopes')
  local h, has = NOTHING, false
  if is_idle(f[1]) then h, has = escrow_of(run) end
  if has then
    for _, account in ipairs(with(scopes_in(f[2]), h.windows)) do
      local sum = sums[account] or {0, 0}
      sums[account] = {sum[1] + h.usd, sum[2] + h.tokens}
    end
  end
end
local accounts, strays = {}, {}
for account, sum in pairs(sums) do
  local f = redis.call('HMGET', scope_key(account), 'ui', 'ti')
  local usd, tokens = tonumber(f[1]) or 0, tonumber(f[2]) or 0
  if usd ~= sum[1] or tokens ~= sum[2] then
    for _, value in ipairs({account, int(sum[1]), int(usd), int(sum[2]), int(tokens)}) do accounts[#accounts + 1] = value end
  end
end
local lists = redis.call('SMEMBERS', P .. 'parked')
for _, list in ipairs(lists) do
  for _, id in ipairs(redis.call('ZRANGE', list_key(list), 0, -1)) do
    local f = redis.call('HMGET', run_key(id), 'state', 'park_scope')
    if f[1] ~= 'parked' or f[2] ~= list then
      strays[#strays + 1] = list
      strays[#strays + 1] = id
    end
  end
end
return {'OK', accounts, strays}
