-- Schedules: batches that are made again and again. Needs _base.
--
-- `schedules` has each by when somebody must look at it: when it is due, when the claim on it ends, or never.

local function schedule_key(name) return P .. 'schedule:' .. name end

-- Put a schedule where it belongs by what it says itself, unless somebody is at work on it.
local function rank_schedule(name)
  local f = redis.call('HMGET', schedule_key(name), 'claim', 'asked', 'paused', 'next')
  if f[1] then return end
  redis.call('ZADD', P .. 'schedules', f[2] or not f[3] and f[4] or '+inf', name)
end
