-- A member says that it lives, and hears who else does.
--
-- KEYS 1 members  2 details  3 lock
-- ARGV 1 member  2 lease, ms  3 what it says of itself, JSON
-- returns {'locked', Redis ms}: an administrator is at work, and it is no member; or {'ok', Redis ms, member, details, …} of all that live
local call, fmt = redis.call, string.format
local members, details, me = KEYS[1], KEYS[2], ARGV[1]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local held = tonumber(call('ZSCORE', members, me) or 0)
-- whoever holds the lock has seen no living member: one that comes back from the dead joins anew
if held < wall and call('EXISTS', KEYS[3]) == 1 then return {'locked', wall} end
call('ZADD', members, fmt('%.0f', wall + tonumber(ARGV[2])), me)
call('HSET', details, me, ARGV[3])
for _, gone in ipairs(call('ZRANGEBYSCORE', members, '-inf', fmt('%.0f', wall - 600000), 'LIMIT', 0, 10)) do
  call('ZREM', members, gone)
  call('HDEL', details, gone)
end
local living = call('ZRANGEBYSCORE', members, fmt('(%.0f', wall), '+inf')
local said = call('HMGET', details, unpack(living))
local answer = {'ok', wall}
for i, member in ipairs(living) do
  answer[#answer + 1] = member
  answer[#answer + 1] = said[i] or '{}'
end
return answer
