-- Saves a resume record, unless it is another owner's by now.
--
-- KEYS 1 record: '<owner>\n<JSON>'
-- ARGV 1 owner with its line end  2 JSON  3 time to live, ms
-- returns 1, or 0: somebody else owns it, and nothing was written
local owner = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1)
if owner ~= '' and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return 1
