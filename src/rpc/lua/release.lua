-- Takes registrations back, where they are still this daemon's.
-- KEYS 1 registry
-- ARGV 1 base  2 scope  3 'away' = it may come back | 'gone' = it left on purpose  4 grace, ms  5 inboxes  6 process  7… method, fence
-- → ids of this process's own calls that have ended, with their methods
local base, scope, how, inboxes, self = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local now = redis_ms()
local ended = {}
for i = 7, #ARGV, 2 do
  local method = ARGV[i]
  local fence, process, _, dedupe = string.match(redis.call('HGET', KEYS[1], method) or '', '^(%d+)|([^|]*)|([^|]*)|(.*)$')
  if fence == ARGV[i + 1] then
    if how == 'away' then
      if process ~= '-' then redis.call('HSET', KEYS[1], method, fence .. '|-|' .. now .. '|' .. dedupe) end
    else
      redis.call('HDEL', KEYS[1], method)
      local queue = base .. method .. ':'
      for _, id in ipairs(redis.call('LRANGE', queue .. 'wait', 0, -1)) do
        local job = redis.call('HMGET', queue .. id, 'dl', 'till', 'ats')
        if not job[1] then redis.call('LREM', queue .. 'wait', 1, id)
        elseif not job[2] or tonumber(job[2]) <= now then
          redis.call('LREM', queue .. 'wait', 1, id)
          local code = job[3] and 'worker_lost' or 'no_worker'
          if settle(base, scope, method, id, false, failure(code, job[3]), code, now, inboxes, self) == 1 then
            ended[#ended + 1] = id
            ended[#ended + 1] = method
          end
        end
      end
    end
  end
end
tidy(KEYS[1], now, tonumber(ARGV[4]))
return ended
