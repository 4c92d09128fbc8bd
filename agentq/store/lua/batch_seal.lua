-- Seal a batch: all rows are in, so it is over when all its runs are.
--
-- USES  ledger reservations fit parking runs
-- KEYS  1 routing key
-- ARGV  1 batch
-- REPLY {"SEALED", total} | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
local newer = too_new()
if newer then return newer end
local batch = P .. 'batch:' .. ARGV[1]
if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
redis.call('HSET', batch, 'sealed', '1')
close_batch(ARGV[1])
return {'SEALED', redis.call('HGET', batch, 'total')}
