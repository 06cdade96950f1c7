-- Ends a job that its token still holds, and tells whoever waits.
-- KEYS 1 job's lock
-- ARGV 1 base  2 scope  3 method  4 id  5 token  6 '1' = a result  7 answer, JSON  8 failure's text  9 inboxes  10 process
-- → 0 done  1 done, and this process waits for it  -1 another has it  -2 nobody knows of it
local base, scope, method, id = unpack(ARGV, 1, 4)
if redis.call('GET', KEYS[1]) ~= ARGV[5] then
  return redis.call('EXISTS', base .. method .. ':' .. id) == 1 and -1 or -2
end
return settle(base, scope, method, id, ARGV[6] == '1', ARGV[7], ARGV[8], redis_ms(), ARGV[9], ARGV[10])
