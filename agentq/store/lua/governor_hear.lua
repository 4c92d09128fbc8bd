-- Learn what a provider has said: it refuses calls for now, these are its limits, or the account's quota is used up.
-- A refusal makes the whole lane wait, and step back once for all calls that were on their way. Of a quota that is used up
-- one event is announced, however many workers hear of it.
--
-- USES  governor
-- KEYS  1 routing key
-- ARGV  1 lane   2 limited | limits | quota
--       3 of limited: ms to wait or ''; of quota: what the provider said   4 lane tokens that the refused call had taken
--       5 limit, 6 remaining, 7 ms until full of requests, 8, 9, 10 the same of tokens; '' for what it does not say
-- REPLY {"OK"} | {"STOPPED"} (the account's first word of its quota)
-- FLAGS allow-oom
local lane, what, now = ARGV[1], ARGV[2], now_ms()
if what == 'quota' then
  local account = account_key(lane)
  local is_first = redis.call('HSETNX', account, 'since', int(now)) == 1
  if is_first then
    redis.call('HSET', account, 'why', ARGV[3], 'lane', lane)
    announce({event = 'quota_stop', lane = lane, why = ARGV[3]})
  end
  redis.call('HSET', account, 'probe', int(now + PROBE_MS))
  redis.call('PEXPIRE', account, LANE_KEPT_MS)
  return {is_first and 'STOPPED' or 'OK'}
end
local l = read_lane(lane, now)
pass_time(l, now)

-- What the headers say. Each limit is taken for one a minute, unless it fills so slowly that it must be one a day.
local least, told = math.huge, nil
for i, d in ipairs(DIMENSIONS) do
  local limit, left, reset = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3]), tonumber(ARGV[3 * i + 4])
  if limit and limit > 0 then
    local cap, size = limit / 60, nil
    if left and reset then
      local fills = (limit - left) / math.max(1, reset) * 1000
      if reset > 10000 and fills > 0 and fills < cap / 2 then cap = fills end
      size = math.max(1, math.min(limit, left + reset / 1000 * cap))
    end
    cap = cap * BELOW
    local known = l[d .. '_cap']
    if not known or math.abs(known - cap) > 0.02 * cap then
      l[d .. '_cap'], l[d .. '_rate'] = cap, cap
      l[d .. '_level'] = math.min(l[d .. '_level'] or math.huge, left or cap * BURST_S)
      if left and not known then l[d .. '_level'] = left end
      l[d .. '_size'] = size
    end
    if size then l[d .. '_size'] = math.max(size, (l[d .. '_size'] or 0) * 0.99) end
    -- It is said of a moment some seconds ago: only what those cannot explain is used by others.
    if left then l[d .. '_level'] = math.min(l[d .. '_level'], left + 10 * cap) end
    if left and left / limit < least then least, told = left / limit, d end
  end
end

-- Slower, in each dimension that is used about as much as it may be: which of the two it was is not said, and being at the
-- limit of both costs little.
local function step_back(taken)
  local seconds = math.max(0.1, (now - l.mark) / 1000)
  local use = {r = math.max(0.1, l.r_n) / seconds, t = math.max(1, l.t_n) / seconds}
  if not l.t_rate and told ~= 'r' then
    -- The provider's bucket was full at first: a second's worth more was let in than it will be.
    local share = 1.1 * seconds / (seconds + BURST_S)
    if not l.r_cap then l.r_rate, l.r_level = use.r * share, 0 end
    l.t_rate, l.t_level = use.t * share, 0
  else
    local measured = seconds >= math.max(2, 6 / use.r) and seconds <= WINDOW_MS / 2000
    l.score = 0.9 * (l.score or 0) + 0.1 * math.max(-1, math.min(1, (taken - (l.call or 0)) / (1.25 * (l.apart or 0) + 1)))
    if math.abs(l.score) > 0.3 then l.tight = l.score > 0 and 't' or 'r' end
    for _, d in ipairs(DIMENSIONS) do
      -- The loose one only where it has been scarce as well, and by little: over a short time it says little.
      local loose = not is_tight(l, d)
      if l[d .. '_rate'] and (told == d or not told and not (loose and l[d .. '_level'] > 0.5 * size_of(l, d))) then
        local rate = l[d .. '_rate']
        l[d .. '_top'] = math.min(rate, use[d] * (measured and 1.25 or 1.04))
        rate = math.max(rate * (measured and not loose and 0.5 or 0.9), math.min(rate * BACK, use[d] * BELOW))
        l[d .. '_rate'] = math.max(rate, 0.9 * (l[d .. '_cap'] or 0))
        l[d .. '_level'], l[d .. '_cut'] = math.min(0, l[d .. '_level']), now
      end
    end
  end
  l.mark, l.r_n, l.t_n, l.back = now, 0, 0, now
end

if what == 'limited' then
  -- It was not let in: what it had taken is there for others.
  local taken = tonumber(ARGV[4]) or 0
  l.refused = l.refused + 1
  l.r_level, l.r_n = l.r_level + 1, math.max(0, l.r_n - 1)
  l.t_level, l.t_n = l.t_level and l.t_level + taken, math.max(0, l.t_n - taken)
  local is_news = now - (l.back or 0) >= HOLD_MS
  if is_news then l.fails = l.fails + 1 end
  local pause = tonumber(ARGV[3]) or math.min(60000, 500 * 2 ^ math.min(20, l.fails))
  l['until'] = math.max(l['until'] or 0, now + math.min(LONGEST_MS, pause))
  if is_news then step_back(taken) end
end
write_lane(lane, l, now)
return {'OK'}
