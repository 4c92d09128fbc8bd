-- A process has proof that acknowledged reservations are lost: let nothing be claimed, admitted or reserved until all
-- processes have said what they have under way, and write down what is missing.
--
-- USES  ledger
-- KEYS  1 routing key
-- ARGV  1 process   2 the highest number of its reservations that is known   3 the highest that was acknowledged
--       4 ms until it is over   5 how long ago the first lost one was acknowledged, in ms
--       6 lost reservations   7 their nano-USD   8 their tokens   9 the how-many-th incident of this process
-- REPLY {"OK", until ms}
-- FLAGS allow-oom
local now = now_ms()
local mine = 'op:' .. ARGV[1]
local l = redis.call('HMGET', LEDGER, 'recovering', mine, 'born')
local is_news = (tonumber(l[2]) or 0) < tonumber(ARGV[3]) or ARGV[6] ~= '0'
for _, told in ipairs(redis.call('LRANGE', P .. 'incidents', -100, -1)) do
  local incident = cjson.decode(told)
  if incident.process == ARGV[1] and incident.incident == ARGV[9] then is_news = false end
end
if not is_news then return {'OK', l[1] or '0'} end
open_ledger()
local till = math.max(now + tonumber(ARGV[4]), tonumber(l[1]) or 0)
redis.call('HSET', LEDGER, 'recovering', int(till), mine, int(math.max(tonumber(l[2]) or 0, tonumber(ARGV[3]))))
local event = {event = 'ledger_rolled_back', process = ARGV[1], incident = ARGV[9], known = ARGV[2],
  acknowledged = ARGV[3], since = int(now - tonumber(ARGV[5])), till = int(now), reservations = ARGV[6],
  nano_usd = ARGV[7], tokens = ARGV[8], missing = l[3] and '0' or '1'}
announce(event)
redis.call('RPUSH', P .. 'incidents', cjson.encode(event))
redis.call('LTRIM', P .. 'incidents', -1000, -1)
note('incident', ARGV[1], {}, {}, {'w', ARGV[6] .. ' reservations, ' .. ARGV[7] .. ' nano-USD, ' .. ARGV[8] .. ' tokens'})
return {'OK', int(till)}
