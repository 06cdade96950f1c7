-- Picks up waiting jobs for a daemon that has the registration, locks them for it, and notes who gets them.
-- KEYS 1 registry
-- ARGV 1 base  2 method  3 `fence|process|daemon`  4 token  5 instance that gets them  6 at most  7 process  8 not after, Redis ms
-- → {'moved', entry} | {'late', now} | {'ok', now, still waiting, id, data, deadline, attempt, instance that had it, '1' = idempotent, marked, fence, …}
local MOST_BYTES = 1048576 -- of params that one pick brings, and one more job's
local base, method, owner, token, instance = unpack(ARGV, 1, 5)
local queue = base .. method .. ':'
local entry = redis.call('HGET', KEYS[1], method) or ''
if string.sub(entry, 1, #owner + 1) ~= owner .. '|' then return { 'moved', entry } end
local now = redis_ms()
if now > tonumber(ARGV[8]) then return { 'late', now } end
local out = { 'ok', now, 0 }
local left = tonumber(ARGV[6])
local bytes = 0
local is_empty = false
for _ = 1, 200 do
  if left == 0 or bytes > MOST_BYTES then break end
  local id = redis.call('LMOVE', queue .. 'wait', queue .. 'active', 'RIGHT', 'LEFT')
  if not id then
    is_empty = true
    break
  end
  local job = queue .. id
  local call = base .. '@call:' .. id
  local data = redis.call('HMGET', job, 'data', 'dl', 'idempotent', 'marked', 'fence', 'finishedOn', 'ats')
  local known = redis.call('HMGET', call, 'hash', 'cancelled', 'given')
  local deadline = tonumber(data[2])
  if not deadline or not known[1] or known[2] or data[6] or now >= deadline then
    -- its caller gave up, or never heard that it was accepted
    redis.call('LREM', queue .. 'active', 0, id)
    if not data[6] then redis.call('DEL', job) end
  else
    left = left - 1
    bytes = bytes + #data[1]
    local given = known[3] or ''
    local attempt = (data[7] or 0) + 1
    redis.call('SET', job .. ':lock', token, 'PX', deadline - now + MINUTE)
    redis.call('HSET', job, 'processedOn', now, 'pb', ARGV[7], 'before', given, 'ats', attempt)
    -- more than one has had it: none of them is the one that remembers all of it
    local is_known = given == '' or given == instance or instance == 'durable'
    redis.call('HSET', call, 'given', is_known and instance or 'several')
    redis.call('PEXPIREAT', call, deadline + MINUTE)
    for _, value in ipairs({ id, data[1] or 'null', deadline, attempt, given, data[3] or '', data[4] or '', data[5] or '' }) do
      out[#out + 1] = value
    end
  end
end
redis.call('PEXPIRE', queue .. 'active', IDLE)
if not is_empty then out[3] = redis.call('LLEN', queue .. 'wait') end
return out
