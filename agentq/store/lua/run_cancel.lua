-- Cancel a run: at once when no worker holds it, else by raising the fence over the holder, which then
-- can book what it spent and nothing more. Where it stopped is kept.
--
-- USES  ledger reservations fit slots parking runs cancelling
-- KEYS  1 routing key
-- ARGV  1 run id   2 who asked
-- REPLY {"CANCELLED"} | {"CANCELLING", where} | {"ENDED", stop reason} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
return cancelled(ARGV[1], ARGV[2])
