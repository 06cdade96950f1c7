-- Reads for an ordered group, if the member still has the partition: nobody else reads there meanwhile.
--
-- KEYS 1 stream  2 redriven  3 state
-- ARGV 1 group  2 member  3 token  4 most entries
-- returns {'lost'} or {'ok', what XREADGROUP answers or nil}
local call = redis.call
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local holder, token, till = unpack(call('HMGET', KEYS[3], 'holder', 'token', 'until'))
if holder ~= ARGV[2] or token ~= ARGV[3] or wall > tonumber(till) then return {'lost'} end
local read = call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[4], 'STREAMS', KEYS[1], KEYS[2], '>', '>')
return {'ok', read}
