-- Renews a process's lease and holds its pod's name.
--
-- KEYS 1 processes (sorted set: process id → end of its lease in Redis ms)  2 pod names (hash: name → process id)
-- ARGV 1 process id  2 pod name  3 lease, ms  4 'take' at the start, else ''
-- returns {'ok' | 'held' (the name is another living process's) | 'lost' (another process took the name), Redis ms,
--          was the lease still there: 1 | 0, up to 200 processes whose lease has lapsed…}
local call = redis.call
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local holder = call('HGET', KEYS[2], ARGV[2])
if holder and holder ~= ARGV[1] then
  if ARGV[4] ~= 'take' then return {'lost', wall, 0} end
  local ends = call('ZSCORE', KEYS[1], holder)
  if ends and tonumber(ends) > wall then return {'held', wall, 0} end
end
local had = call('ZSCORE', KEYS[1], ARGV[1])
call('ZADD', KEYS[1], string.format('%.0f', wall + tonumber(ARGV[3])), ARGV[1])
if holder ~= ARGV[1] then call('HSET', KEYS[2], ARGV[2], ARGV[1]) end
return {'ok', wall, had and 1 or 0, unpack(call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', wall), 'LIMIT', 0, 200))}
