-- Local functions of the call scripts. Every key of a call has the hash tag of its target.
--   base     what the target's keys begin with: `…rpc:{<scope>}:`
--   method   escaped; `base .. method` is a BullMQ queue, and its jobs are in BullMQ's own format
--   inboxes  what an inbox's key begins with: `…inbox:{`
--   at       a registry entry: `<fence>|<process>|<daemon>|<dedupe>`, or `<fence>|-|<away since, ms>|<dedupe>`

local MINUTE = 60000
local IDLE = 15 * MINUTE -- an idle queue's keys
local OLD = 2 * MINUTE -- ended jobs, in their lists
local LEASE = 3000 -- ms, of a process; as src/pods has it
local LARGE = 8192 -- bytes of params or of a result that an inbox carries

local function redis_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- What need not be done each time, though the time-out of a key is long: one time in sixteen.
local function is_due(now)
  return now % 16 == 0
end

local function send(inboxes, process, message)
  return redis.call('XADD', inboxes .. process .. '}', 'NOMKSTREAM', 'MAXLEN', '~', 10000, '*', 'm', message)
end

local function ring(inboxes, process, scope, method)
  return send(inboxes, process, '{"type":"rpc-ring","scope":"' .. scope .. '","method":"' .. method .. '"}')
end

-- Whether somebody can take a call now. → 'live', process, daemon | 'away', since | 'absent'
-- A process is judged by its lease only up to `judges_until`: a script that waited in a Redis that stood still finds all of them gone.
local function worker(entry, now, processes, judges_until)
  if not entry then return 'absent' end
  local process, rest = string.match(entry, '^%d+|([^|]*)|([^|]*)')
  if process == '-' then return 'away', tonumber(rest) end
  if judges_until and now <= judges_until then
    local ends = redis.call('ZSCORE', processes, process)
    if ends and tonumber(ends) < now then return 'away', tonumber(ends) - LEASE end
  end
  return 'live', process, rest
end

-- Ends a job and tells everybody who waits for it. `answer` is JSON: the result, or a failure. → 1: `self` is among them
local function settle(base, scope, method, id, is_result, answer, reason, now, inboxes, self)
  local queue = base .. method .. ':'
  local job = queue .. id
  local waiters = base .. '@rt:' .. id
  local known = redis.call('HMGET', job, 'dl', 'rt', 'more', 'large')
  local list = 'failed'
  redis.call('DEL', job .. ':lock')
  redis.call('LREM', queue .. 'active', 0, id)
  if is_result then
    list = 'completed'
    redis.call('HSET', job, 'returnvalue', answer, 'finishedOn', now)
  else
    redis.call('HSET', job, 'failedReason', reason, 'failure', answer, 'finishedOn', now)
  end
  redis.call('ZADD', queue .. list, now, id)
  if is_due(now) then
    redis.call('ZREMRANGEBYSCORE', queue .. list, '-inf', now - OLD)
    redis.call('PEXPIRE', queue .. list, IDLE)
  else
    redis.call('PEXPIRE', queue .. list, IDLE, 'NX')
  end
  local deadline = tonumber(known[1])
  local keep = math.max(now, deadline or now) + MINUTE
  if not deadline or now > deadline then redis.call('PEXPIREAT', job, keep) end
  redis.call('PEXPIREAT', base .. '@call:' .. id, keep)
  -- large ones for a minute only: who asks later hears that it ran
  if #answer > LARGE then redis.call('PEXPIREAT', job, now + MINUTE) end
  if known[4] then redis.call('HSET', job, 'data', 'null') end
  local told = {}
  if known[3] then
    told = redis.call('SMEMBERS', waiters)
    redis.call('DEL', waiters)
  end
  if known[2] then told[#told + 1] = known[2] end
  local head = '{"type":"rpc-answer","scope":"' .. scope .. '","id":"' .. id .. '","ok":' .. (is_result and 'true' or 'false')
  local message = head .. ',"answer":' .. answer .. '}'
  if #answer > LARGE then message = head .. ',"method":"' .. method .. '"}' end
  local is_self = 0
  local seen = {}
  for _, process in ipairs(told) do
    if process == self then is_self = 1
    elseif not seen[process] then send(inboxes, process, message) end
    seen[process] = true
  end
  return is_self
end

-- The JSON of how a job ended, from its hash: 1 = a result. A stock worker's failure is only a text.
local function ending(returnvalue, stored, reason)
  if returnvalue then return 1, returnvalue end
  if stored then return 0, stored end
  return 0, '{"code":"handler_error","mayHaveRun":true,"error":' .. cjson.encode(reason or 'failed') .. '}'
end

local function failure(code, may_have_run)
  return '{"code":"' .. code .. '","mayHaveRun":' .. (may_have_run and 'true' or 'false') .. '}'
end

-- Puts a job that was picked up back to where it is picked up next.
local function put_back(queue, id)
  redis.call('DEL', queue .. id .. ':lock')
  redis.call('LREM', queue .. 'active', 0, id)
  redis.call('RPUSH', queue .. 'wait', id)
  redis.call('PEXPIRE', queue .. 'wait', IDLE)
end

-- After entries of the registry went: one without a living worker ends by itself.
local function tidy(registry, now, grace)
  local entries = redis.call('HGETALL', registry)
  local is_alive = false
  for i = 1, #entries, 2 do
    local process, since = string.match(entries[i + 1], '^%d+|([^|]*)|([^|]*)')
    if process ~= '-' then is_alive = true
    elseif now - tonumber(since) > grace + MINUTE then redis.call('HDEL', registry, entries[i]) end
  end
  if not is_alive then redis.call('PEXPIRE', registry, grace + MINUTE) end
end
