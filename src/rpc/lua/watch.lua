-- Looks after calls of one method that are taking long: tells of ended ones, and mends what a death or a lost message left.
-- KEYS 1 registry  2 processes (of another slot)
-- ARGV 1 base  2 scope  3 method  4 process  5 grace, ms  6 wait for a first worker, ms  7 until when this process may judge others, Redis ms; '' = it may not
--      8 inboxes  9 '1' = stock BullMQ Workers serve it  10 what a mark of a buried process begins with  11… ids
-- → {now, 1 = ring here, id, 'done', 1 = result, answer | id, 'missing', '', '' | id, 'given', instance, fence of the entry …}
local CHECK_FOR = 3000 -- ms of its age in which a worker is asked whether it has it
local base, scope, method, self = unpack(ARGV, 1, 4)
local grace, first, inboxes = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8]
local is_stock = ARGV[9] == '1'
local queue = base .. method .. ':'
local now = redis_ms()
local entry = redis.call('HGET', KEYS[1], method)
local may_judge = ARGV[7] ~= '' and now <= tonumber(ARGV[7])
local state, process, daemon = worker(entry, now, KEYS[2], tonumber(ARGV[7]))
local out = { now, 0 }
local must_ring = false

local function say(id, what, a, b)
  for _, value in ipairs({ id, what, a, b }) do out[#out + 1] = value end
end

local function is_dead(other)
  if not may_judge or other == self then return false end
  local ends = redis.call('ZSCORE', KEYS[2], other)
  if ends then return tonumber(ends) < now end
  -- one that was buried is in no list any more, and its inbox may outlive it
  return redis.call('EXISTS', ARGV[10] .. other .. '}') == 1 or redis.call('EXISTS', inboxes .. other .. '}') == 0
end

if state == 'live' and is_dead(process) then
  -- it was buried before its last registration came
  redis.call('HSET', KEYS[1], method, string.match(entry, '^%d+') .. '|-|' .. now .. '|')
  tidy(KEYS[1], now, grace)
  state, process = 'away', now
end

for i = 11, #ARGV do
  local id = ARGV[i]
  local job, call = queue .. id, base .. '@call:' .. id
  local known = redis.call('HMGET', job, 'finishedOn', 'returnvalue', 'failure', 'dl', 'till', 'ats', 'timestamp', 'failedReason')
  local noted = redis.call('HMGET', call, 'hash', 'heard', 'given')
  if known[1] then say(id, 'done', ending(known[2], known[3], known[8]))
  elseif not known[4] or not noted[1] then say(id, 'missing', '', '')
  else
    if not noted[2] then
      -- its caller has heard of it
      redis.call('HSET', call, 'heard', 1)
      redis.call('PEXPIREAT', call, known[4] + MINUTE)
    end
    if noted[3] then say(id, 'given', noted[3], state == 'live' and string.match(entry, '^%d+') or '0') end
    local holder = not is_stock and redis.call('GET', job .. ':lock')
    local holding = holder and string.match(holder, '^([^|]*)|')
    if is_stock then
      -- its workers look after it
    elseif holding and state == 'live' and string.sub(holder, 1, #process + #daemon + 2) ~= process .. '|' .. daemon .. '|' then
      put_back(queue, id)
      must_ring = true
    elseif holding and not is_dead(holding) then
      -- in work; but the message that gave it to its worker may be lost
      if now - known[7] < CHECK_FOR and string.sub(holder, -#id) == id then
        send(inboxes, holding, '{"type":"rpc-check","scope":"' .. scope .. '","method":"' .. method .. '","id":"' .. id .. '","token":"' .. holder .. '"}')
      end
    elseif state == 'live' then
      -- in no list: its queue was lost, or its lock ran out
      if not redis.call('LPOS', queue .. 'wait', id) then put_back(queue, id) end
      must_ring = true
    else
      -- an entry that has only just gone may be written again
      local till = tonumber(known[5]) or (state == 'away' and process + grace) or known[7] + math.max(first, 2000)
      if till <= now then
        redis.call('LREM', queue .. 'wait', 1, id)
        local code = (state == 'away' or known[6]) and 'worker_lost' or 'no_worker'
        local answer = failure(code, known[6])
        settle(base, scope, method, id, false, answer, code, now, inboxes, self)
        say(id, 'done', 0, answer)
      end
    end
  end
end
if must_ring then
  if process == self then out[2] = 1 else ring(inboxes, process, scope, method) end
end
return out
