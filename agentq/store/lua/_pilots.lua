-- The pilot of a batch: of its rows only a sample is admitted first. Needs _base.
--
-- It is over when all rows are in, the sample has been admitted, and all that was admitted has ended.
local function pilot_is_over(batch)
  local key = P .. 'batch:' .. batch
  local f = redis.call('HMGET', key, 'pilot', 'sealed')
  if not f[1] or f[2] ~= '1' or redis.call('EXISTS', key .. ':open') == 1 then return false end
  local first = redis.call('ZRANGE', key .. ':feed', 0, 0, 'WITHSCORES')
  return not first[2] or tonumber(first[2]) >= 0
end
