-- Deletes a group in one partition, with its place, failures and dead letters.
--
-- KEYS 1 stream  2 meta  3 state  4 failures  5 dead  6 redriven
-- ARGV 1 group
-- returns 1: something of it was there, else 0
local call = redis.call
local destroyed = redis.pcall('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
-- an error: no stream
if type(destroyed) ~= 'number' then destroyed = 0 end
local deleted = call('DEL', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
call('HDEL', KEYS[2], 'unread:' .. ARGV[1])
return (destroyed + deleted > 0) and 1 or 0
