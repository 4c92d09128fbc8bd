-- The counters of a batch. Needs _base.
--
-- What the runs of a batch that have ended add up to is in fields `m:<name>` of its hash, so that nobody has to read their
-- threads. Each keeps in `counted` what it has added, for a retry to take back. Steps are a histogram, whose last bucket has
-- all that are longer; the squares of what runs cost, in micro-USD², may be more than an integer holds.
local STEPS_MAX = 200

local function add_up(batch, counted, sign)
  for name, n in string.gmatch(counted, '(%S+)=(%d+)') do
    local sum = redis.call(name == 'usd2' and 'HINCRBYFLOAT' or 'HINCRBY', batch, 'm:' .. name, sign .. n)
    if tonumber(sum) == 0 then redis.call('HDEL', batch, 'm:' .. name) end
  end
end

-- Whether the provider has refused the key of a call, or said that its quota is used up, by how the run's error begins.
local function is_refused(run)
  local detail = redis.call('HGET', run, 'stop_detail') or ''
  return string.match(detail, '^provider_auth') or string.match(detail, '^provider_quota')
end

-- Add a run that ends to its batch's counters: what its thread's head says, and what is booked on its account by now.
local function count(id, run, batch, reason)
  local head = redis.call('HGET', run, 'head') or ''
  local function of_head(name) return tonumber(string.match(head, '"' .. name .. '":(%d+)')) or 0 end
  local usd, errors = tonumber(redis.call('HGET', scope_key('run:' .. id), 'us')) or 0, of_head('failed')
  local counted = 'steps:' .. int(math.min(of_head('step'), STEPS_MAX)) .. '=1'
  for _, item in ipairs({{'results', of_head('results')}, {'errors', errors}, {'met', errors > 0 and 1 or 0},
    {'recovered', errors > 0 and reason == 'finished' and 1 or 0}, {'unpriced', of_head('unpriced')}, {'usd', usd},
    {'refused', reason == 'model_error' and is_refused(run) and 1 or 0}, {'usd2', math.floor((usd / 1000) ^ 2 + 0.5)}}) do
    if item[2] > 0 then counted = counted .. ' ' .. item[1] .. '=' .. int(item[2]) end
  end
  redis.call('HSET', run, 'counted', counted)
  add_up(batch, counted, '')
end
