-- Ends a session, if it is still that one's: an old connection's late death never touches its successor.
--
-- KEYS 1 session
-- ARGV 1 id  2 life of the takeovers' history, ms
-- returns 1 if it was the holder
local call = redis.call
if call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
call('HDEL', KEYS[1], 'id', 'at')
call('PEXPIRE', KEYS[1], ARGV[2])
return 1
