-- Takes a process out of the set: its own at a clean end, a dead one's once it is buried.
--
-- KEYS 1 processes  2 pod names
-- ARGV 1 process id  2 'lapsed' (only if its lease has run out) or ''
-- returns 1 if it is out
local call = redis.call
local time = call('TIME')
local ends = call('ZSCORE', KEYS[1], ARGV[1])
if ARGV[2] == 'lapsed' and ends and tonumber(ends) > time[1] * 1000 + math.floor(time[2] / 1000) then return 0 end
call('ZREM', KEYS[1], ARGV[1])
local names = call('HGETALL', KEYS[2])
for i = 1, #names, 2 do if names[i + 1] == ARGV[1] then call('HDEL', KEYS[2], names[i]) end end
return 1
