-- Processes whose lease runs.
--
-- KEYS 1 processes (sorted set: process id → end of its lease in Redis ms)
-- returns their ids
local time = redis.call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', wall), '+inf')
