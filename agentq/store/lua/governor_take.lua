-- Ask for one call outside of a run, and correct what an earlier one has taken.
--
-- USES  governor
-- KEYS  1 routing key
-- ARGV  1 take | settle   2 lane   3 who asks
--       of take 4 tokens that it will read   5 its output cap
--       of settle 4 tokens that were taken   5 that it used, -1 when nobody knows   6 of them in the answer
-- REPLY {"TAKEN", tokens} | {"PACED", ms to wait, why: pace, limited or quota} | {"OK"}
if ARGV[1] == 'settle' then
  settle_lane(ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
  return {'OK'}
end
local taken, wait, why = take_lane(ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
if not taken then return {'PACED', wait, why} end
return {'TAKEN', taken}
