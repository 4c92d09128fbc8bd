-- Make part of a step final: thread, bill and progress move together, or only the bill when the fence is stale.
--
-- USES  ledger reservations fit slots parking runs governor
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 operation id
--       4 outcome: tools | continue | wait | gather | end   5 stop reason (end), the operation of this claim that must have
--         come before (continue, gather, wait), or ''
--       6 grace ms until a lost message is sent again (continue), deadline ms from now (wait)
--       7 reservation or ''   8 how it closes   9 usd   10 tokens
--      11 n, then n fields and values of the run's hash   then messages, trace events, cached results: count and items,
--         the hint to push (continue): count 0 or 2, queue key and message
--         and last, of a gather: the children that it waits for, then names of gathers and ms from now: count and items;
--         behind all, where the call shares a rate limit, `pace:` and its lane, tokens taken, used and written
-- REPLY {"OK"} | {"CANCELLED"} (it ended as cancelled; the money is booked) | {"STALE"} (only the money is) | {"MISSING"}
-- FLAGS allow-oom
local id, fence, op, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'op', 'deaths', 'failures', 'step', 'stop_reason', 'scopes',
  'error', 'head')
local state = f[1]
if not state then return {'MISSING'} end
if f[3] == op then
  -- Any other end was a cancellation; it may have come after this commit, and then says no less.
  if state == 'ended' and (outcome ~= 'end' or f[7] ~= ARGV[5]) then return {'CANCELLED'} end
  return {'OK'}
end
local usd, tokens = amount(ARGV[9]), amount(ARGV[10])
local now, scopes = now_ms(), scopes_in(f[8])
if ARGV[7] ~= '' and close_reservation(id, run, scopes, ARGV[7], ARGV[8], usd, tokens) then
  wake(scopes)
  local lane, taken, used, written = string.match(ARGV[#ARGV], '^pace:(%S+) (%d+) (%d+) (%d+)$')
  if lane then settle_lane(lane, id, tonumber(taken), tonumber(used), tonumber(written)) end
end
local refused = refusal(id, run, state, f[2], fence, op, now)
if refused then return refused end
-- The server was rolled back to before the reply was kept: what its tools gave would stand alone.
if outcome ~= 'end' and ARGV[5] ~= '' and f[3] ~= ARGV[5] then return {'STALE'} end
local fields, at = take(11)
local lists = {}
if outcome == 'end' and ARGV[5] ~= 'finished' then
  -- Where a retry goes on: before the closing turn, which this commit brings.
  redis.call('HSET', run, 'reopen', int(redis.call('LLEN', run .. ':msgs')), 'reopen_head', f[10])
end
for _, part in ipairs({':msgs', ':trace'}) do
  lists[part], at = take(at)
  if #lists[part] > 0 then redis.call('RPUSH', run .. part, unpack(lists[part])) end
end
local cached, hint
cached, at = take(at)
hint, at = take(at)
if #cached > 0 then redis.call('HSET', run .. ':cache', unpack(cached)) end
if f[4] then redis.call('HDEL', run, 'deaths') end
if f[5] or f[9] then redis.call('HDEL', run, 'failures', 'unclear', 'failing', 'error') end
fields[#fields + 1] = 'op'
fields[#fields + 1] = op
if outcome == 'end' then
  end_run(id, run, ARGV[5], now, fields)
elseif outcome == 'tools' then
  redis.call('HSET', run, 'phase', 'tools', unpack(fields))
elseif outcome == 'continue' then
  forfeit_open(id, run, scopes)
  forget_done(run)
  fields[#fields + 1] = 'step'
  fields[#fields + 1] = int(tonumber(f[6]) + 1)
  fields[#fields + 1] = 'phase'
  fields[#fields + 1] = 'model'
  requeue(id, run, now, now + tonumber(ARGV[6]), fields)
  if #hint > 0 then push_hint(hint[1], hint[2], tenant_in(scopes)) end
elseif outcome == 'gather' then
  -- It waits for children, without a lease. Those that have ended by now will not tell it: they are looked at here.
  forfeit_open(id, run, scopes)
  forget_done(run)
  local children, gathers, live, till = nil, nil, 0, nil
  children, at = take(at)
  gathers = take(at)
  for _, child in ipairs(children) do
    local of_child = redis.call('HGET', run_key(child), 'state')
    if of_child and of_child ~= 'ended' then live = live + redis.call('SADD', run .. ':awaits', child) end
  end
  for i = 1, #gathers, 2 do
    -- A gather that is called again, because another one had to wait meanwhile, keeps its first deadline.
    redis.call('HSETNX', run .. ':gathers', gathers[i], int(now + tonumber(gathers[i + 1])))
    local mine = tonumber(redis.call('HGET', run .. ':gathers', gathers[i]))
    till = math.min(till or mine, mine)
  end
  fields[#fields + 1] = 'deadline'
  fields[#fields + 1] = int(till)
  fields[#fields + 1] = 'gathering'
  fields[#fields + 1] = int(live)
  leave(id, run, 'waiting', now, till, fields)
  mark_idle(run, scopes, 1)
  if live == 0 or till <= now then go_on(id, run) end
else
  -- It waits for a person. Whatever has a result by now is in the journal.
  forfeit_open(id, run, scopes)
  local till = now + tonumber(ARGV[6])
  fields[#fields + 1] = 'phase'
  fields[#fields + 1] = 'tools'
  fields[#fields + 1] = 'deadline'
  fields[#fields + 1] = int(till)
  leave(id, run, 'waiting', now, till, fields)
  redis.call('ZADD', P .. 'inbox', int(now), id)
  mark_idle(run, scopes, 1)
end
return {'OK'}
