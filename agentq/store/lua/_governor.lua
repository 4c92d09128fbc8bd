-- The governor: how fast the calls of one lane (a provider, a key and a model that share a rate limit) may go. Needs _base.
-- A lane has two buckets, of requests (r) and of tokens (t). Each fills at a rate a second that is learned, and holds what
-- comes in one second, or what the provider says. The law, and why: docs/decisions/0029. None of it is money: rates and
-- levels may be fractions.
--
-- Fields of a lane: at (ms) of the levels; of r and t each rate, level, cap and size (what the provider says), cut (ms, when
-- it last stepped back), top (about where it was refused), lack (ms, when a call last had to wait for it), n (let in since
-- `mark`, ms); until (ms, a pause), fails (refusals without an answer in between), back (ms, the last step back); output (mean
-- of an answer), call and apart (mean of a call's tokens, and how far they are from it), score and tight (which bucket seems to
-- bind); book, booked and hold: who is let in next, until when others leave him room, for how many tokens; turn; taken and
-- refused (calls), kept (ms, when its end was last put off).
-- Who waits stands in `line:<lane>`, by when it came, and in `waits:<lane>`, by when it is to ask again.
local LANE_KEPT_MS = 86400000
local START_RATE, START_LOOK_MS = 4, 2000
local BURST_S, LOOSE_S = 1, 4          -- what the tight bucket holds, and the loose one
local MARGIN = 0.1                     -- of the tight one is left for what calls in flight use more than was expected
local OUTPUT_GUESS, OUTPUT_SHARE, CALL_SHARE = 256, 0.1, 0.05
local WANTED_MS = 2000                 -- a rate grows only while calls wait for it
local FAST = 0.08                      -- a second, until it has stepped back once
local NEAR, NEARER = 0.95, 0.01        -- then up to near where it was refused, a second
local GROWTH, FASTEST = 0.002, 0.1     -- then this, doubled every 10 s after the first 20, up to that
local STEADY_MS, STEADY_CALLS, SLOWEST = 20000, 60, 10
local WINDOW_MS, HOLD_MS = 20000, 1000 -- what counts as used of late; refusals that are one
local BACK, BELOW = 0.96, 0.98
local LONGEST_MS, PROBE_MS = 120000, 600000
local LOOK_MS, LOOK_EACH_MS, LATE_MS = 20000, 30, 60000
local TURN_MS, BOOKED_MS = 1500, 1500  -- who would go within this may go now; for so long one is waited for
local DENSE = 0.9                      -- all come back a little early, so that a rate that grows finds somebody
local FULL = 0.95                      -- of the tight bucket: then whoever asks may go
local DIMENSIONS = {'r', 't'}
local FIELDS = {'at', 'mark', 'until', 'fails', 'back', 'score', 'call', 'apart', 'output', 'booked', 'hold', 'turn', 'taken', 'refused', 'kept',
  'r_rate', 'r_level', 'r_cap', 'r_size', 'r_cut', 'r_top', 'r_lack', 'r_n',
  't_rate', 't_level', 't_cap', 't_size', 't_cut', 't_top', 't_lack', 't_n'}

local function lane_key(lane) return P .. 'lane:' .. lane end
local function line_key(lane) return P .. 'line:' .. lane end
local function waits_key(lane) return P .. 'waits:' .. lane end
-- A quota is that of a provider and key: all their models stop.
local function account_key(lane) return P .. 'account:' .. (string.match(lane, '^([^:]*:[^:]*):') or lane) end

-- ── the state of a lane ─────────────────────────────────────────────────────────────────────────
local function number_text(n)
  if n == math.floor(n) or math.abs(n) > 1e6 then return int(math.floor(n + 0.5)) end
  return string.format('%.6g', n)
end

local function read_lane(lane, now)
  local values, l = redis.call('HMGET', lane_key(lane), 'book', 'tight', unpack(FIELDS)), {was = {}}
  l.book, l.tight = values[1] or nil, values[2] or nil
  l.was.book, l.was.tight = l.book, l.tight
  for i, name in ipairs(FIELDS) do
    local text = values[i + 2] or nil
    l.was[name], l[name] = text, text and tonumber(text)
  end
  if not l.at then
    l.at, l.mark, l.turn, l.taken, l.refused, l.fails = now, now, 0, 0, 0, 0
    l.r_rate, l.r_level, l.r_n, l.t_n = START_RATE, START_RATE, 0, 0
  end
  return l
end

local function write_lane(lane, l, now)
  local renewed = not l.kept or now - l.kept > LANE_KEPT_MS / 24
  if renewed then l.kept = now end
  local args = {}
  local function write(name, text)
    if text and text ~= l.was[name] then
      args[#args + 1] = name
      args[#args + 1] = text
    end
  end
  for _, name in ipairs(FIELDS) do write(name, l[name] and number_text(l[name])) end
  write('book', l.book)
  write('tight', l.tight)
  if #args > 0 then redis.call('HSET', lane_key(lane), unpack(args)) end
  if renewed then
    redis.call('PEXPIRE', lane_key(lane), LANE_KEPT_MS)
    redis.call('ZADD', P .. 'lanes', int(now), lane)
    redis.call('ZREMRANGEBYSCORE', P .. 'lanes', '-inf', int(now - LANE_KEPT_MS))
    redis.call('PEXPIRE', P .. 'lanes', LANE_KEPT_MS)
  end
end

-- Nothing is known yet: the rate doubles each second for as long as calls want more and none is refused.
local function is_new(l) return not l.t_rate and not l.r_cap end
-- One of the two is kept close to what the provider is thought to hold, the other one loosely: a call that is held up by
-- both would leave room unused in both.
local function is_tight(l, d) return d == (l.tight or (l.t_rate and 't' or 'r')) end
local function size_of(l, d)
  return math.max(1, l[d .. '_size'] or l[d .. '_rate'] * ((is_new(l) or is_tight(l, d)) and BURST_S or LOOSE_S))
end

local function growth_of(l, d, now, seconds)
  if is_new(l) or l.t_cap and not l.back and not l[d .. '_cap'] then return 2 ^ seconds end
  local cut = l[d .. '_cut']
  if not cut then return 1 + FAST * seconds end
  -- Where calls are few, each refusal is a larger share of them: what takes 20 s elsewhere takes 60 calls.
  local rate = math.min(l.r_rate, (l.t_rate or math.huge) / (l.call or 1))
  local slowly = math.max(1, math.min(SLOWEST, STEADY_CALLS / (rate * STEADY_MS / 1000)))
  if l[d .. '_rate'] < NEAR * (l[d .. '_top'] or 0) then return 1 + NEARER * seconds end
  local pace = GROWTH / slowly * 2 ^ math.min(10, math.max(0, (now - cut) / STEADY_MS / slowly - 1) * 2)
  return 1 + math.min(FASTEST, pace) * seconds
end

-- Bring levels and rates up to now.
local function pass_time(l, now)
  local seconds = math.max(0, now - l.at) / 1000
  l.at = math.max(l.at, now)
  if now - l.mark > WINDOW_MS then
    local kept = WINDOW_MS / 2 / (now - l.mark)
    l.mark, l.r_n, l.t_n = now - WINDOW_MS / 2, l.r_n * kept, l.t_n * kept
  end
  for _, d in ipairs(DIMENSIONS) do
    local rate = l[d .. '_rate']
    if rate then
      if now - (l[d .. '_lack'] or 0) <= WANTED_MS and now >= (l['until'] or 0) then
        l[d .. '_rate'] = math.min(rate * growth_of(l, d, now, math.min(1, seconds)), l[d .. '_cap'] or math.huge)
      end
      l[d .. '_level'] = math.min(size_of(l, d), l[d .. '_level'] + rate * seconds)
    end
  end
end

-- ── asking ──────────────────────────────────────────────────────────────────────────────────────
-- Seconds until there is room for a call, and which bucket it waits for. `spare` is the share that must be there at least.
local function lacking(l, cost, spare, hold)
  local longest, scarce = 0, nil
  for _, d in ipairs(DIMENSIONS) do
    local rate = l[d .. '_rate']
    if rate then
      local size = size_of(l, d)
      local need = cost[d] + hold[d] + (is_tight(l, d) and MARGIN * size or 0)
      need = math.min(0.999 * size, math.max(need, is_tight(l, d) and spare * size or spare * 2 * cost[d]))
      local wait = (need - l[d .. '_level']) / rate
      if wait > longest then longest, scarce = wait, d end
    end
  end
  return longest, scarce
end

-- Ms that the lane takes for a call of the usual size.
local function each_ms(l, cost)
  local mean, longest = {r = 1, t = l.call or cost.t}, 0
  for _, d in ipairs(DIMENSIONS) do
    if l[d .. '_rate'] then longest = math.max(longest, 1000 * mean[d] / l[d .. '_rate']) end
  end
  return longest
end

-- A number from 0 to 1 that is far from those before it: who is told different times does not come back together.
local function turn(l)
  l.turn = (l.turn + 0.618034) % 1
  return l.turn
end

-- How often somebody looks who has long to wait: the more there are, the less often each.
local function look_ms(place) return math.max(LOOK_MS, place * LOOK_EACH_MS) end

-- Ms until a call should ask again that may not go now: behind those before it, and not before a pause is over.
local function later(l, now, wait, ahead_ms, place)
  local pause, rest = math.max(0, (l['until'] or 0) - now), 1000 * wait + DENSE * ahead_ms
  if is_new(l) then return pause + START_LOOK_MS * (0.1 + 0.9 * turn(l)) end
  if rest > look_ms(place) then rest = look_ms(place) * (0.5 + 0.5 * turn(l)) end
  return pause + rest
end

-- Who is waited for no longer leaves the line.
local function prune(lane, now)
  local gone = redis.call('ZRANGEBYSCORE', waits_key(lane), '-inf', int(now - LATE_MS), 'LIMIT', 0, 100)
  if #gone > 0 then
    redis.call('ZREM', waits_key(lane), unpack(gone))
    redis.call('ZREM', line_key(lane), unpack(gone))
  end
end

-- Keep its place in the line; answers the whole ms that it is told to wait.
local function stay_in_line(lane, id, now, told)
  redis.call('ZADD', line_key(lane), 'NX', int(now), id)
  redis.call('ZADD', waits_key(lane), int(math.ceil(now + told)), id)
  redis.call('PEXPIRE', line_key(lane), LANE_KEPT_MS)
  redis.call('PEXPIRE', waits_key(lane), LANE_KEPT_MS)
  return math.max(1, math.ceil(told))
end

-- Take one call's request and expected tokens, or say how long to wait. Answers the tokens, or nil, ms and why.
local function take_lane(lane, id, input, cap)
  local now = now_ms()
  local l = read_lane(lane, now)
  pass_time(l, now)
  prune(lane, now)
  local place = redis.call('ZRANK', line_key(lane), id) or nil
  local waited = place ~= nil
  place = place or redis.call('ZCARD', line_key(lane))
  local cost = {r = 1, t = math.ceil(input + math.min(cap, l.output or OUTPUT_GUESS))}
  local stop = redis.call('HGET', account_key(lane), 'probe')
  if stop and now < tonumber(stop) then
    local told = stay_in_line(lane, id, now, math.min(tonumber(stop) - now, look_ms(place)) * (0.5 + 0.5 * turn(l)))
    write_lane(lane, l, now)
    return nil, told, 'quota'
  end
  local limited = now < (l['until'] or 0)
  local hold = {r = 0, t = 0}
  if l.book and l.book ~= id and now < l.booked then hold = {r = 1, t = l.hold} end
  local ahead_ms = place * each_ms(l, cost)
  local in_turn = ahead_ms <= TURN_MS
  local wait, scarce = lacking(l, cost, (in_turn or is_new(l)) and 0 or FULL, hold)
  if limited or scarce then
    for _, d in ipairs(DIMENSIONS) do
      if l[d .. '_rate'] and l[d .. '_level'] < 0.5 * size_of(l, d) then l[d .. '_lack'] = now end
    end
    local told = stay_in_line(lane, id, now, later(l, now, wait, ahead_ms, place))
    if in_turn and not limited and not is_new(l) and (not l.book or l.book == id or now > l.booked) then
      l.book, l.booked, l.hold = id, now + told + BOOKED_MS, cost.t
    end
    write_lane(lane, l, now)
    return nil, told, limited and 'limited' or 'pace'
  end
  for _, d in ipairs(DIMENSIONS) do
    if l[d .. '_rate'] then l[d .. '_level'] = l[d .. '_level'] - cost[d] end
    l[d .. '_n'] = l[d .. '_n'] + cost[d]
  end
  l.taken = l.taken + 1
  l.call = l.call or cost.t
  l.apart = (l.apart or 0) + CALL_SHARE * (math.abs(cost.t - l.call) - (l.apart or 0))
  l.call = l.call + CALL_SHARE * (cost.t - l.call)
  if waited then
    redis.call('ZREM', line_key(lane), id)
    redis.call('ZREM', waits_key(lane), id)
  end
  if l.book == id then l.booked = 0 end
  if stop then redis.call('HSET', account_key(lane), 'probe', int(now + PROBE_MS), 'prober', id) end
  write_lane(lane, l, now)
  return cost.t
end

-- ── what became of it ───────────────────────────────────────────────────────────────────────────
-- Correct what one call has taken: `actual` tokens (-1: nobody knows; 0: it was not let in), `output` of them in the answer.
local function settle_lane(lane, id, taken, actual, output)
  if actual < 0 or redis.call('EXISTS', lane_key(lane)) == 0 then return end
  local now = now_ms()
  local l = read_lane(lane, now)
  pass_time(l, now)
  if l.t_rate then l.t_level = math.min(size_of(l, 't'), l.t_level + taken - actual) end
  l.t_n = math.max(0, l.t_n + actual - taken)
  if actual == 0 then
    l.r_level = math.min(size_of(l, 'r'), l.r_level + 1)
  else
    l.fails = 0
    l.output = l.output and l.output + OUTPUT_SHARE * (output - l.output) or output
    if redis.call('HGET', account_key(lane), 'prober') == id then
      redis.call('DEL', account_key(lane))
      announce({event = 'quota_back', lane = lane, by = id})
    end
  end
  write_lane(lane, l, now)
end
