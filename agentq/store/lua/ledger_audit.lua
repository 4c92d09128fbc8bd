-- Read accounts at one instant: what they say, what the checkpoint says, and what their runs hold. From now on the log is
-- not folded for a while, so that it can be laid between the two.
--
-- USES  ledger reservations fit slots parking
-- KEYS  1 routing key
-- ARGV  1 for how long the log is not folded, in ms   2 the most descendants of a run to read   3 and on: accounts
-- REPLY {last number in the log, last number in the checkpoint, {account, …}}, an account is {fields and values, those of
--       its checkpoint, 1 when it is there} and, of a run, behind them: its state or '', 1 when it is in the list in which it
--       waits, what it and its descendants hold (names of fields and amounts; nothing where they are too many)
-- FLAGS allow-oom
local most = tonumber(ARGV[2])

local function add_holdings(id, sum)
  sum.read = sum.read + 1
  if sum.read > most + 1 then return end
  local run = run_key(id)
  local f = redis.call('HMGET', run, 'state', 'descendants')
  local all = redis.call('HGETALL', run .. ':open')
  for i = 1, #all, 2 do
    if all[i] ~= 'n' then
      local h, kind = held(all[i + 1]), all[i] == 'escrow' and 'e' or 'r'
      sum['u' .. kind], sum['t' .. kind] = sum['u' .. kind] + h.usd, sum['t' .. kind] + h.tokens
      if kind == 'e' and is_idle(f[1]) then
        sum.ui, sum.ti = sum.ui + h.usd, sum.ti + h.tokens
      end
    end
  end
  if (tonumber(f[2]) or 0) == 0 then return end
  for _, child in ipairs(redis.call('HVALS', run .. ':children')) do add_holdings(string.match(child, '%S+$'), sum) end
end

local f = redis.call('HMGET', LEDGER, 'pinned', 'folded')
local till = now_ms() + tonumber(ARGV[1])
if (tonumber(f[1]) or 0) < till then redis.call('HSET', LEDGER, 'pinned', int(till)) end
local newest = redis.call('XREVRANGE', P .. 'log', '+', '-', 'COUNT', 1)[1]
local found = {}
for i = 3, #ARGV do
  local account = ARGV[i]
  local a = {redis.call('HGETALL', scope_key(account)), redis.call('HGETALL', P .. 'checkpoint:' .. account),
    redis.call('EXISTS', scope_key(account))}
  local id = not is_window(account) and string.match(account, '^run:(.*)$')
  if id then
    local r = redis.call('HMGET', run_key(id), 'state', 'park_scope')
    local sum, flat = {read = 0, ur = 0, tr = 0, ue = 0, te = 0, ui = 0, ti = 0}, {}
    add_holdings(id, sum)
    if sum.read <= most + 1 then
      for _, name in ipairs({'ur', 'tr', 'ue', 'te', 'ui', 'ti'}) do
        flat[#flat + 1] = name
        flat[#flat + 1] = int(sum[name])
      end
    end
    a[4], a[5], a[6] = r[1] or '', r[1] == 'parked' and redis.call('ZSCORE', list_key(r[2]), id) and 1 or 0, flat
  end
  found[#found + 1] = a
end
return {newest and string.match(newest[1], '%-(%d+)$') or f[2] or '0', f[2] or '0', found}
