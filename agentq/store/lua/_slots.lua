-- Slots: which runs are in flight, and where their hints go. Needs _base.
--
-- A slot is a membership, never a counter: a run has one while it is queued and due, or running. `slots` has all of them,
-- `slots:t:<tenant>` and `slots:b:<batch>` the same by tenant and batch, and `flying` the tenants that have any.

-- kombu keeps the messages of a queue in a list for each priority: this behind its name is the one that is served second.
local SECOND = '\6\0221'

-- Whether a tenant has no more than half of its share in flight: then it need not wait behind what others have queued.
local function below_share(tenant)
  local tenants = redis.call('SCARD', P .. 'flying')
  return tenants > 1 and redis.call('SCARD', P .. 'slots:t:' .. tenant) * tenants * 2 <= redis.call('SCARD', P .. 'slots')
end

-- Send a hint; with `front` before all others of its list.
local function push_hint(queue, message, tenant, front)
  redis.call(front and 'RPUSH' or 'LPUSH', below_share(tenant) and queue or queue .. SECOND, message)
end

-- The tenant among a run's scopes.
local function tenant_in(scopes) return string.sub(scopes[2], 8) end

local function take_slot(id, tenant, batch)
  if redis.call('SADD', P .. 'slots', id) == 0 then return end
  redis.call('SADD', P .. 'slots:t:' .. tenant, id)
  redis.call('SADD', P .. 'flying', tenant)
  if batch and batch ~= '' then
    redis.call('SADD', P .. 'slots:b:' .. batch, id)
    redis.call('SREM', P .. 'batch:' .. batch .. ':delayed', id)
  end
end

local function take_slot_again(id, run) take_slot(id, unpack(redis.call('HMGET', run, 'tenant', 'batch'))) end

-- Give a slot back, if the run has one; answers the run's tenant and batch.
local function free_slot(id, run)
  local tenant, batch = unpack(redis.call('HMGET', run, 'tenant', 'batch'))
  local of_batch = batch and batch ~= ''
  if redis.call('SREM', P .. 'slots', id) == 1 then
    redis.call('SREM', P .. 'slots:t:' .. tenant, id)
    if redis.call('EXISTS', P .. 'slots:t:' .. tenant) == 0 then redis.call('SREM', P .. 'flying', tenant) end
    if of_batch then redis.call('SREM', P .. 'slots:b:' .. batch, id) end
  elseif of_batch then
    redis.call('SREM', P .. 'batch:' .. batch .. ':delayed', id)
  end
  return tenant, batch
end

-- A tenant takes no turns for now. Its virtual time stays its own, or whoever is often at a cap would be first each time.
local function stand_aside(tenant)
  local at = redis.call('ZSCORE', P .. 'turns', tenant)
  if not at then return end
  redis.call('ZADD', P .. 'aside', at, tenant)
  redis.call('ZREM', P .. 'turns', tenant)
end

-- Rows may be admitted: their batch may have become one that takes turns again, or a slot is free.
local function feed_after(tenant, batch)
  local rows = batch and batch ~= '' and redis.call('EXISTS', P .. 'batch:' .. batch .. ':feed') == 1
  if not rows and redis.call('EXISTS', P .. 'turns', P .. 'turns:' .. tenant) == 0 then return end
  -- PART feeder
  if rows then offer(batch) end
  seat(tenant)
  feed(tenant, FED_AT_ONCE)
end

-- A run leaves its slot; whoever's turn it is may have it.
local function return_slot(id, run) feed_after(free_slot(id, run)) end

-- A run is to be claimed later: others may have its slot. Its batch counts it all the same: where a provider is down, or a
-- rate limit is what its runs wait for, the rows behind it stay where they are.
local function delay_slot(id, run)
  local tenant, batch = free_slot(id, run)
  if batch and batch ~= '' then redis.call('SADD', P .. 'batch:' .. batch .. ':delayed', id) end
  feed_after(tenant, batch)
end

-- A run of a batch waits for money that it has never had: so would the rows behind it. Nothing of the batch is admitted
-- until that run goes on, or ends.
local function mark_dry(id, run)
  local tenant, batch = unpack(redis.call('HMGET', run, 'tenant', 'batch'))
  if not batch or batch == '' then return end
  redis.call('HSETNX', P .. 'batch:' .. batch, 'dry', id)
  redis.call('ZREM', P .. 'turns:' .. tenant, batch)
  if redis.call('EXISTS', P .. 'turns:' .. tenant) == 0 then stand_aside(tenant) end
end

local function end_dry(id, run)
  local batch = redis.call('HGET', run, 'batch')
  if not batch or batch == '' then return end
  local key = P .. 'batch:' .. batch
  if redis.call('HGET', key, 'dry') ~= id then return end
  redis.call('HDEL', key, 'dry')
  -- PART feeder
  offer(batch)
end
