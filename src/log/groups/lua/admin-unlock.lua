-- Lets members join again, unless another administrator has the lock by now.
--
-- KEYS 1 lock
-- ARGV 1 token of the administrator
-- returns 1: it was this one's, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
