-- Cancel many runs, each as `run_cancel.lua` does: most of a script's time goes into starting it.
--
-- USES  ledger reservations fit slots parking runs cancelling
-- KEYS  1 routing key
-- ARGV  1 who asked   2 n, then n run ids
-- REPLY {the reply of `run_cancel.lua` for each} | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local replies = {}
for i, id in ipairs((take(2))) do replies[i] = cancelled(id, ARGV[1]) end
return replies
