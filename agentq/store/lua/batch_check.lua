-- Hold what a batch says of itself against its lists, at one instant, and put right what can be without a loss.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 1 to repair, or ''
-- REPLY {"GONE"} | {"OK", {finding, detail, 1 when it was repaired, …}}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local name, repair = ARGV[1], ARGV[2] == '1'
local batch, account = P .. 'batch:' .. name, 'batch:' .. name
if redis.call('EXISTS', batch) == 0 then return {'GONE'} end
local f = redis.call('HMGET', batch, 'sealed', 'total', 'ended', 'ttl', 'descendants')
local found = {}
local function find(code, detail, mend)
  if mend and repair then mend() end
  for _, part in ipairs({code, detail, mend and repair and 1 or 0}) do found[#found + 1] = part end
end

local total, ended = tonumber(f[2]) or 0, tonumber(f[3]) or 0
local rows, open = redis.call('LLEN', batch .. ':runs'), redis.call('SCARD', batch .. ':open')
if total ~= rows then find('total', int(total) .. ' rows, and its list has ' .. int(rows)) end
local waiting, dropped = 0, 0
for _, part in ipairs({':feed', ':loading'}) do waiting = waiting + redis.call('ZCARD', batch .. part) end
for _, reason in ipairs({'cancelled', 'cost_budget', 'token_budget'}) do
  dropped = dropped + redis.call('ZCARD', batch .. ':dropped:' .. reason)
end
if ended ~= rows - open - waiting then
  find('ended', int(ended) .. ', and are ' .. int(rows - open - waiting), function()
    redis.call('HSET', batch, 'ended', int(rows - open - waiting))
    ended = rows - open - waiting
  end)
end
local texts = redis.call('HLEN', batch .. ':rows')
if texts ~= waiting + dropped then find('rows', int(texts) .. ', and its lists have ' .. int(waiting + dropped)) end

-- Whose runs have all left their slots, or come back to none, has nobody who admits the next of its rows.
local function starved()
  -- PART feeder
  local tenant = redis.call('HGET', batch, 'tenant')
  if redis.call('EXISTS', feed_of(name)) == 0 or not open_batch(name) or is_full(tenant) then return nil end
  if redis.call('EXISTS', P .. 'slots:t:' .. tenant, batch .. ':delayed') > 0 then return nil end
  if redis.call('ZSCORE', P .. 'starts', name) then return nil end
  if redis.call('ZSCORE', P .. 'turns:' .. tenant, name) and redis.call('ZSCORE', P .. 'turns', tenant) then return nil end
  return function() offer(name) end
end
local mend = starved()
if mend then find('starving', int(waiting), mend) end

local keys = {}
for _, part in ipairs(BATCH_PARTS) do keys[#keys + 1] = batch .. part end
for _, scope in ipairs({account, account .. '@day', account .. '@month'}) do keys[#keys + 1] = scope_key(scope) end
keys[#keys + 1] = P .. 'checkpoint:' .. account
local over = f[1] == '1' and ended >= total and (tonumber(f[5]) or 0) == 0
local wrong = {}
for _, key in ipairs(keys) do
  local ttl = redis.call('PTTL', key)
  if (over and ttl == -1) or (not over and ttl >= 0) then wrong[#wrong + 1] = key end
end
if #wrong > 0 then
  find(over and 'endless' or 'vanishing', string.sub(wrong[1], #P + 1), function()
    for _, key in ipairs(wrong) do
      if over then redis.call('PEXPIRE', key, f[4]) else redis.call('PERSIST', key) end
    end
  end)
end
return {'OK', found}
