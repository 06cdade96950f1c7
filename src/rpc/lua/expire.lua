-- Takes jobs out of a stock queue whose time is over: no worker may begin them.
-- KEYS 1 wait
-- ARGV 1 base  2 scope  3 method  4 inboxes  5 process
-- → number of jobs
local base, scope, method, inboxes, self = unpack(ARGV, 1, 5)
local queue = base .. method .. ':'
local now = redis_ms()
local count = 0
for _, id in ipairs(redis.call('LRANGE', KEYS[1], -100, -1)) do
  local deadline = tonumber(redis.call('HGET', queue .. id, 'dl'))
  if not deadline then
    -- one of somebody else's keeps its place; ours has lost its hash
    if redis.call('EXISTS', queue .. id) == 0 then redis.call('LREM', KEYS[1], 1, id) end
  elseif deadline < now then
    redis.call('LREM', KEYS[1], 1, id)
    settle(base, scope, method, id, false, failure('timeout', false), 'timeout', now, inboxes, self)
    count = count + 1
  end
end
return count
