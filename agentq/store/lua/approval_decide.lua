-- Decide on a call that waits for a person: the first decision counts. With the last one of its step the run goes on.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 call id   3 operation id   4 verdict: approve | deny   5 who   6 reason or ''
--       7 arguments to use in place of the call's, as JSON, or ''
-- REPLY {"DECIDED", calls of the run that are still open} | {"TAKEN", the decision that was first, JSON}
--       | {"EXPIRED"} (its time is over) | {"CLOSED", state} (nothing of the run waits) | {"UNKNOWN"} (no such call)
--       | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local id, call = ARGV[1], ARGV[2]
local run = run_key(id)
local decisions = run .. ':decisions'
local f = redis.call('HMGET', run, 'state', 'pending', 'deadline', 'gathering')
if not f[1] then return {'MISSING'} end
local first = redis.call('HGET', decisions, call)
if first then
  if cjson.decode(first).op == ARGV[3] then return {'DECIDED', int(f[2] and #cjson.decode(f[2]) or 0)} end
  return {'TAKEN', first}
end
if f[1] ~= 'waiting' or f[4] then return {'CLOSED', f[1]} end
local open, there = {}, false
for _, other in ipairs(cjson.decode(f[2])) do
  if other.id == call then there = true else open[#open + 1] = other end
end
if not there then return {'UNKNOWN'} end
local now = now_ms()
if now >= tonumber(f[3]) then return {'EXPIRED'} end
redis.call('HSET', decisions, call, cjson.encode({op = ARGV[3], verdict = ARGV[4], by = ARGV[5], reason = ARGV[6],
  arguments = ARGV[7], at = int(now)}))
if #open == 0 then decided(id, run) else redis.call('HSET', run, 'pending', cjson.encode(open)) end
return {'DECIDED', int(#open)}
