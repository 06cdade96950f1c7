-- Puts jobs back that a token holds, and rings whoever has the registration now.
-- KEYS 1 registry
-- ARGV 1 base  2 scope  3 method  4 token  5 '1' = they were not sent  6 inboxes  7 process  8 id, '' = all of the token
-- → 1 if this process should ring itself
local base, scope, method, token = unpack(ARGV, 1, 4)
local queue = base .. method .. ':'
local count = 0
local ids = { ARGV[8] }
if ARGV[8] == '' then ids = redis.call('LRANGE', queue .. 'active', 0, -1) end
for _, id in ipairs(ids) do
  local job = queue .. id
  if redis.call('GET', job .. ':lock') == token then
    count = count + 1
    if ARGV[5] == '1' then
      local before = redis.call('HGET', job, 'before')
      local call = base .. '@call:' .. id
      if before and before ~= '' then redis.call('HSET', call, 'given', before) else redis.call('HDEL', call, 'given') end
    end
    put_back(queue, id)
  end
end
if count == 0 then return 0 end
local process = string.match(redis.call('HGET', KEYS[1], method) or '', '^%d+|([^|]*)|')
if process == ARGV[7] then return 1 end
if process and process ~= '-' then ring(ARGV[6], process, scope, method) end
return 0
