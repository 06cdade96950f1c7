-- Deletes a resume record if it is still the caller's.
--
-- KEYS 1 record  ARGV 1 owner with its line end
-- returns the number of records deleted
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
