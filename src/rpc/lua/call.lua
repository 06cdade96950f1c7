-- Accepts a call, or finds the one that it is: atomic, and nothing of a refused call stays. One whose worker is there, with nothing
-- before it, is given to it at once; others wait in the queue.
-- KEYS 1 call  2 registry  3 processes (of another slot)
-- ARGV 1 base  2 scope  3 method  4 id  5 payload hash, '' = attach to whatever has this id  6 'again' = accepted before, and gone
--      7 not after, Redis ms  8 time-out, ms  9 caller's process  10 caller's own daemon, '' = none
--      11 grace of a worker that is away, ms  12 wait for a worker at most, ms, '' = by the grace  13 wait for a first worker, ms
--      14 until when this process may judge others, Redis ms; '' = it may not  15 inboxes  16 most waiting jobs
--      17 job's name  18 data  19 '1' = idempotent  20 instance that may have it  21 fence at which that was
--      22 '1' = stock BullMQ Workers serve it  23 most jobs of the method that are given at once
-- → {'new', now, entry, 0 | 1 = ring here | 2 = it is given to a worker here | 3 = elsewhere, deadline}
--   {'live', now, instance that has had it, 0, deadline, method} {'done', now, is result, answer}
--   {'lost' | 'cancelled' | 'conflict' | 'unknown' | 'late' | 'self' | 'no_worker' | 'overloaded', now}

-- a stock worker keeps what has ended in its lists for as long as anybody may ask
local STOCK = '{"attempts":1,"removeOnComplete":{"age":660},"removeOnFail":{"age":660}}'
local OWN = '{"attempts":1}'
local base, scope, method, id, hash, mode = unpack(ARGV, 1, 6)
local self, inboxes, data, is_stock = ARGV[9], ARGV[15], ARGV[18], ARGV[22] == '1'
local now = redis_ms()
if now > tonumber(ARGV[7]) then return { 'late', now } end
local known = redis.call('HMGET', KEYS[1], 'hash', 'cancelled', 'given', 'process', 'method')
if hash == '' then
  if not known[1] or not known[5] then return { 'unknown', now } end
  method = known[5]
end
local queue = base .. method .. ':'
local job = queue .. id
if known[1] then
  if known[1] == '' then return { 'cancelled', now } end
  if hash ~= '' and known[1] ~= hash then return { 'conflict', now } end
  local found = redis.call('HMGET', job, 'finishedOn', 'returnvalue', 'failure', 'dl', 'failedReason')
  if found[1] then return { 'done', now, ending(found[2], found[3], found[5]) } end
  if known[2] then return { 'cancelled', now, known[3] and 1 or 0 } end
  if found[4] then
    if known[4] ~= self then
      redis.call('SADD', base .. '@rt:' .. id, self)
      redis.call('PEXPIREAT', base .. '@rt:' .. id, found[4] + MINUTE)
      redis.call('HSET', job, 'more', 1)
    end
    return { 'live', now, known[3] or '', 0, tonumber(found[4]), method }
  end
  if known[3] then return { 'lost', now } end
  if hash == '' then return { 'unknown', now } end
end
local may_judge = ARGV[14] ~= '' and now <= tonumber(ARGV[14])
local entry = not is_stock and redis.call('HGET', KEYS[2], method)
local state, process, daemon = worker(entry, now, KEYS[3], tonumber(ARGV[14]))
local wait = tonumber(ARGV[12])
if state == 'live' and process == self and daemon == ARGV[10] then return { 'self', now } end
if state ~= 'live' and mode ~= 'again' and not is_stock then
  local till = now + (wait or tonumber(ARGV[13]))
  if state == 'away' and not wait then till = process + tonumber(ARGV[11]) end
  if till <= now then return { 'no_worker', now } end
end
local waiting = redis.call('LLEN', queue .. 'wait')
if mode ~= 'again' and waiting >= tonumber(ARGV[16]) then return { 'overloaded', now } end
local deadline = now + tonumber(ARGV[8])
local fields = { 'name', ARGV[17], 'data', data, 'opts', is_stock and STOCK or OWN, 'timestamp', now, 'delay', 0, 'priority', 0,
  'rt', self, 'dl', deadline }
local function set(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
if ARGV[19] == '1' then set('idempotent', 1) end
if wait then set('till', now + wait) end
if #data > LARGE then set('large', 1) end
if ARGV[21] ~= '' then
  set('marked', ARGV[20])
  set('fence', ARGV[21])
end
local active = redis.call('LLEN', queue .. 'active')
local is_given = state == 'live' and waiting == 0 and mode ~= 'again' and #data <= LARGE and active < tonumber(ARGV[23])
if is_given then
  set('processedOn', now)
  set('pb', process)
  set('ats', 1)
end
redis.call('HSET', job, unpack(fields))
redis.call('PEXPIREAT', job, deadline + MINUTE)
if is_given then
  local fence, instance = string.match(entry, '^(%d+)|[^|]*|[^|]*|(.*)$')
  redis.call('SET', job .. ':lock', process .. '|' .. daemon .. '|' .. id, 'PX', deadline - now + MINUTE)
  redis.call('LPUSH', queue .. 'active', id)
  if active == 0 or is_due(now) then redis.call('PEXPIRE', queue .. 'active', IDLE) end
  redis.call('HSET', KEYS[1], 'hash', hash, 'method', method, 'process', self, 'given', instance)
  -- until its worker is known to be at work, or its caller to have heard of it
  redis.call('PEXPIREAT', KEYS[1], ARGV[7])
  if process == self then return { 'new', now, entry, 2, deadline } end
  local message = '{"type":"rpc-job","scope":"' .. scope .. '","method":"' .. method .. '","id":"' .. id .. '","fence":"' .. fence
    .. '","daemon":"' .. daemon .. '","deadline":' .. deadline .. ',"notAfter":' .. ARGV[7] .. ',"idempotent":' .. (ARGV[19] == '1' and 'true' or 'false')
    .. ',"params":' .. data .. '}'
  if send(inboxes, process, message) then return { 'new', now, entry, 3, deadline } end
  -- that process has no inbox (any more)
  put_back(queue, id)
  redis.call('HDEL', KEYS[1], 'given')
  if may_judge then
    redis.call('HSET', KEYS[2], method, fence .. '|-|' .. now .. '|' .. instance)
    tidy(KEYS[2], now, tonumber(ARGV[11]))
  end
  return { 'new', now, entry, 0, deadline }
end
if mode == 'again' then redis.call('LREM', queue .. 'wait', 0, id) end
redis.call('LPUSH', queue .. 'wait', id)
redis.call('PEXPIRE', queue .. 'wait', IDLE)
redis.call('HSET', KEYS[1], 'hash', hash, 'method', method, 'process', self)
if is_stock then
  redis.call('ZADD', queue .. 'marker', 0, '0')
  redis.call('PEXPIREAT', KEYS[1], deadline + MINUTE)
  return { 'new', now, '', 0, deadline }
end
-- until it is picked up, or its caller is known to have heard of it
redis.call('PEXPIREAT', KEYS[1], ARGV[7])
local here = 0
if state == 'live' then
  if process == self then here = 1
  -- the job before it rang; now and then that is said again
  elseif waiting % 16 == 0 then ring(inboxes, process, scope, method) end
end
return { 'new', now, entry or '', here, deadline }
