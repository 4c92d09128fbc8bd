-- Keep from the next folding on what an exporter has not read, or no longer: '' says that nobody exports any more.
--
-- KEYS  1 routing key
-- ARGV  1 the last number that was exported, or ''
-- REPLY {"OK"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
if ARGV[1] == '' then
  redis.call('HDEL', LEDGER, 'exported')
else
  redis.call('HSET', LEDGER, 'exported', int(amount(ARGV[1])))
end
return {'OK'}
