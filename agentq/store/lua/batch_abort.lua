-- Take back what a load has added, the last first, some rows at a time. A batch that had nothing before is gone then.
--
-- USES  ledger reservations fit slots parking runs
-- KEYS  1 routing key
-- ARGV  1 batch   2 who loads   3 how many rows it had before   4 how many to take back at most
-- REPLY {"MORE"} | {"DONE"} | {"LOST"} (the batch was cancelled, or somebody else loads it by now) | {"MISSING"}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local name, mine, before, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local batch = P .. 'batch:' .. name
if redis.call('EXISTS', batch) == 0 then return {'MISSING'} end
local loader, was = string.match(redis.call('HGET', batch, 'loader') or '', '^(%S+) %d+ (.)$')
if loader ~= mine then return {'LOST'} end
local left = redis.call('LLEN', batch .. ':runs') - before
for _ = 1, math.min(left, most) do
  local run = redis.call('RPOP', batch .. ':runs')
  local row = cjson.decode(redis.call('HGET', batch .. ':rows', run))
  redis.call('HDEL', batch .. ':ids', row[2])
  redis.call('HDEL', batch .. ':rows', run)
  redis.call('ZREM', batch .. ':loading', run)
  redis.call('HINCRBY', batch, 'total', -1)
end
if left > most then return {'MORE'} end
redis.call('HDEL', batch, 'loader')
if before > 0 then
  -- What a loader that was killed has left stays unsealed: it is resumed, or cancelled.
  if was == '1' then
    redis.call('HSET', batch, 'sealed', '1')
    close_batch(name)
  end
  return {'DONE'}
end
redis.call('DEL', P .. 'serial:' .. (redis.call('HGET', batch, 'serial') or ''))
redis.call('ZREM', P .. 'batches', name)
redis.call('SREM', P .. 'pilots', name)
for _, part in ipairs(BATCH_PARTS) do redis.call('DEL', batch .. part) end
-- The log knows its account: it goes as that of a batch that is over.
expire_account('batch:' .. name, 1)
return {'DONE'}
