-- Notes how far an old stream is in the log. Never backwards: a server that was stopped for a while may come late.
--
-- KEYS 1 places (hash)
-- ARGV 1 field  2 ms of the id  3 number behind it  4 life of the places, ms
-- returns 1
local call = redis.call
local ms, seq = string.match(call('HGET', KEYS[1], ARGV[1]) or '0-0', '^(%d+)-(%d+)$')
ms, seq = tonumber(ms), tonumber(seq)
local newMs, newSeq = tonumber(ARGV[2]), tonumber(ARGV[3])
if newMs > ms or (newMs == ms and newSeq > seq) then call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '-' .. ARGV[3]) end
call('PEXPIRE', KEYS[1], ARGV[4])
return 1
