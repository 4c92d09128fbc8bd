-- Look at the next runs that are parked in one scope, the longest waiting first, and let those go on that fit. A sweep of
-- a list goes over it in several calls, and begins at most twice a second.
--
-- USES  ledger reservations fit slots parking
-- KEYS  1 routing key
-- ARGV  1 list: a scope or its windows   2 how many to look at
-- REPLY {"OK", how many go on, 1 when the sweep is at its end} | {"EARLY"} (it has just been swept)
-- FLAGS allow-oom
local list, field = ARGV[1], 'sweep:' .. ARGV[1]
local begun, place = string.match(redis.call('HGET', LEDGER, field) or '0 0', '^(%d+) (%d+)$')
begun, place = tonumber(begun), tonumber(place)
local now = now_ms()
if place == 0 then
  if now - begun < 500 and now >= begun then return {'EARLY'} end
  begun = now
end
local woken, reached, over = wake_list(list, place, tonumber(ARGV[2]), {})
if over then reached = 0 end
if redis.call('EXISTS', list_key(list)) == 1 then
  redis.call('HSET', LEDGER, field, int(begun) .. ' ' .. int(reached))
else
  redis.call('HDEL', LEDGER, field)
end
return {'OK', int(woken), over and 1 or 0}
