-- Gives a call up: what has not begun never will.
-- KEYS 1 call
-- ARGV 1 base  2 scope  3 id  4 'cancelled' | 'timeout'  5 process  6 inboxes  7 '1' = one that comes later is refused
-- → {'done', is result, answer} it had ended | {'active'} its worker is told | {'ended', 1 = it may have run, 1 = this process waits}
--   {'unknown'}
local base, scope, id, code, self, inboxes = unpack(ARGV, 1, 6)
local now = redis_ms()
local known = redis.call('HMGET', KEYS[1], 'hash', 'method')
if not known[1] or known[1] == '' then
  if ARGV[7] == '1' then
    redis.call('HSET', KEYS[1], 'hash', '', 'cancelled', 1)
    redis.call('PEXPIRE', KEYS[1], MINUTE)
  end
  return { 'unknown' }
end
local method = known[2]
local queue = base .. method .. ':'
local job = queue .. id
local found = redis.call('HMGET', job, 'finishedOn', 'returnvalue', 'failure', 'dl', 'ats', 'failedReason')
if found[1] then return { 'done', ending(found[2], found[3], found[6]) } end
redis.call('HSET', KEYS[1], 'cancelled', 1)
redis.call('PEXPIREAT', KEYS[1], math.max(now, tonumber(found[4]) or now) + MINUTE)
if not found[4] then return { 'unknown' } end
local lock = redis.call('GET', job .. ':lock')
if lock then
  -- a stock worker's names no process, and can't be told
  send(inboxes, string.match(lock, '^[^|]*'), '{"type":"rpc-give-up","scope":"' .. scope .. '","id":"' .. id .. '","code":"' .. code .. '"}')
  return { 'active' }
end
redis.call('LREM', queue .. 'wait', 1, id)
local here = settle(base, scope, method, id, false, failure(code, found[5]), code, now, inboxes, self)
return { 'ended', found[5] and 1 or 0, here }
