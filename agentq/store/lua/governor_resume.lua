-- Lift the stop of an account: a person has paid, or knows better. Its lanes are called again at once.
--
-- KEYS  1 routing key
-- ARGV  1 account: provider and the mark of its key   2 who
-- REPLY {"OK"} | {"RUNNING"} (it was not stopped) | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
if redis.call('DEL', P .. 'account:' .. ARGV[1]) == 0 then return {'RUNNING'} end
announce({event = 'quota_back', lane = ARGV[1], by = ARGV[2]})
return {'OK'}
