-- Takes a resume record over from the owner that was read, so that of two who restore it at one instant one succeeds.
--
-- KEYS 1 record: '<owner>\n<JSON>'
-- ARGV 1 owner that was read, with its line end  2 new owner, with its line end  3 time to live, ms
-- returns 1, or 0: it is no longer that owner's
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. string.sub(value, #ARGV[1] + 1), 'PX', ARGV[3])
return 1
