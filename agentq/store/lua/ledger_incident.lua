-- A worker has proof that acknowledged reservations are lost: let nothing be claimed, admitted or reserved until all workers
-- have said what they have under way, and write down what is missing.
--
-- USES  ledger
-- KEYS  1 routing key
-- ARGV  1 process   2 operation number that is known   3 the highest that was acknowledged   4 ms until it is over
--       5 how long ago the first lost one was acknowledged, in ms   6 lost reservations   7 their nano-USD   8 their tokens
-- REPLY {"OK", until ms}
-- FLAGS allow-oom
local now = now_ms()
local mine, till = 'op:' .. ARGV[1], now + tonumber(ARGV[4])
local l = redis.call('HMGET', LEDGER, 'recovering', mine)
if (tonumber(l[2]) or 0) >= tonumber(ARGV[3]) then return {'OK', l[1] or '0'} end
open_ledger()
till = math.max(till, tonumber(l[1]) or 0)
redis.call('HSET', LEDGER, 'recovering', int(till), mine, ARGV[3])
local event = {event = 'ledger_rolled_back', process = ARGV[1], known = ARGV[2], acknowledged = ARGV[3],
  since = int(now - tonumber(ARGV[5])), till = int(now), reservations = ARGV[6], nano_usd = ARGV[7], tokens = ARGV[8]}
announce(event)
redis.call('RPUSH', P .. 'incidents', cjson.encode(event))
redis.call('LTRIM', P .. 'incidents', -1000, -1)
note('incident', ARGV[1], {}, {}, {'w', ARGV[6] .. ' reservations, ' .. ARGV[7] .. ' nano-USD, ' .. ARGV[8] .. ' tokens'})
return {'OK', int(till)}
