-- Give a step back without progress: its reservation closed, the run queued again, at once or after a delay.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 run id   2 fence   3 operation id   4 delay ms   5 grace ms until a lost message is sent again
--       6 reservation or ''   7 how it closes   8 usd   9 tokens
--      10 how many failures of a model call it counts as, or 0   11 n, then n fields and values of the run's hash
-- REPLY {"OK", failures in a row} | {"CANCELLED"} | {"STALE"} | {"MISSING"}
-- FLAGS allow-oom
local id, fence, op, delay = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local run = run_key(id)
local f = redis.call('HMGET', run, 'state', 'fence', 'op', 'failures', 'scopes')
local state = f[1]
if not state then return {'MISSING'} end
if f[3] == op then
  if state == 'ended' then return {'CANCELLED'} end
  return {'OK', f[4] or '0'}
end
local usd, tokens = amount(ARGV[8]), amount(ARGV[9])
local now = now_ms()
local scopes = scopes_in(f[5])
if ARGV[6] ~= '' and close_reservation(id, run, scopes, ARGV[6], ARGV[7], usd, tokens) then wake(scopes) end
local refused = refusal(id, run, state, f[2], fence, op, now)
if refused then return refused end
forfeit_open(id, run, scopes)
local fields = take(11)
fields[#fields + 1] = 'op'
fields[#fields + 1] = op
local failures = (tonumber(f[4]) or 0) + tonumber(ARGV[10])
if ARGV[10] ~= '0' then
  fields[#fields + 1] = 'failures'
  fields[#fields + 1] = int(failures)
  redis.call('HSETNX', run, 'failing', int(now))
end
local due = now + tonumber(ARGV[5])
if delay > 0 then
  due = now + delay
  fields[#fields + 1] = 'not_before'
  fields[#fields + 1] = int(due)
end
requeue(id, run, now, due, fields)
if delay > 0 then delay_slot(id, run) end
return {'OK', int(failures)}
