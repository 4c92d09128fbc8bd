-- Stop a scope, or let it go on: while it is frozen nothing is reserved in it, and what is sent already is still booked.
--
-- USES  ledger reservations fit slots parking operator
-- KEYS  1 routing key
-- ARGV  1 operation id   2 actor   3 reason   4 scope   5 1 to freeze, 0 to let it go on
-- REPLY {"OK"} | {"CONFLICT", what this id has done}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local asked = (ARGV[5] == '1' and 'freeze ' or 'unfreeze ') .. ARGV[4]
local before = replayed(ARGV[1], asked)
if before then return before end
open_ledger()
local on = ARGV[5] == '1'
set_word(ARGV[4], 'frozen', on)
note(on and 'freeze' or 'unfreeze', ARGV[4], {ARGV[4]}, {}, {'a', ARGV[2], 'r', ARGV[3]})
if not on then wake({ARGV[4]}) end
return done(ARGV[1], asked, {'OK'})
