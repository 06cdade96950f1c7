-- Keeps members out while an administrator changes a group, or refuses because there are some. A member joins by a script in
-- this slot that looks at the lock first: so of a join and a change that begin together, one sees the other.
--
-- KEYS 1 members (sorted set: member id → end of its lease, Redis ms)  2 lock
-- ARGV 1 token of the administrator  2 how long it is held, ms
-- returns {'ok'} (taken, or prolonged by who has it), {'active', member…} or {'locked', ms for which another one has it}
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- one whose lease ends in this very ms may still prolong it
local live = call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', now), '+inf')
if #live > 0 then return {'active', unpack(live, 1, 1000)} end
local holder = call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return {'locked', call('PTTL', KEYS[2])} end
call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'ok'}
