-- Take on the notices that are due: batches that are over, and whom to tell. A notice whose batch goes on again, or is
-- gone, is dropped; so is one that nobody could be told within a day.
--
-- KEYS  1 routing key
-- ARGV  1 for how long nobody else sends them, ms   2 how many at most   3 '1', or '' for a worker that cannot sign any
--       4 after which time it is given up, ms
-- REPLY {batch, number of its notice, URL, when it was over (ms), tries so far, …}
--       | {"SCHEMA", version} (the state is newer than this script)
-- FLAGS allow-oom
local newer = too_new()
if newer then return newer end
local UNSIGNED = 'no worker has the setting webhook_secret'
local now, notices, reply = now_ms(), P .. 'notices', {}
for _, batch in ipairs(redis.call('ZRANGEBYSCORE', notices, '-inf', int(now), 'LIMIT', 0, ARGV[2])) do
  local key = P .. 'batch:' .. batch
  local f = redis.call('HMGET', key, 'notify', 'told', 'total', 'notice', 'notice_at', 'notice_tries', 'notify_error')
  if not f[1] or f[2] ~= f[3] then
    redis.call('ZREM', notices, batch)
  elseif now - tonumber(f[5]) > tonumber(ARGV[4]) then
    local why = 'given up: ' .. (f[7] or UNSIGNED)
    redis.call('ZREM', notices, batch)
    redis.call('HSET', key, 'notify_error', why)
    announce({event = 'notice_given_up', batch = batch, detail = why})
  elseif ARGV[3] == '' then
    -- It stays due: another worker may have it.
    if not f[7] then redis.call('HSET', key, 'notify_error', UNSIGNED) end
  else
    redis.call('ZADD', notices, int(now + tonumber(ARGV[1])), batch)
    for _, part in ipairs({batch, f[4], f[1], f[5], f[6]}) do reply[#reply + 1] = part end
  end
end
return reply
