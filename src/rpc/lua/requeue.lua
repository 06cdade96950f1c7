-- Puts jobs back that a token holds, and rings whoever has the registration now. Without a registration they end.
-- KEYS 1 registry
-- ARGV 1 base  2 scope  3 method  4 token  6 inboxes  7 process  8 id, '' = all of the token
--      5 '' | '1' = they were not sent | '2' = nor came in time: one whose caller is not known to have heard of it never begins
-- → {1 = this process should ring itself, id that has ended and that this process waits for, …}
local base, scope, method, token = unpack(ARGV, 1, 4)
local queue = base .. method .. ':'
local count = 0
local out = { 0 }
local now = redis_ms()
local process = string.match(redis.call('HGET', KEYS[1], method) or '', '^%d+|([^|]*)|')
local ids = { ARGV[8] }
if ARGV[8] == '' then ids = redis.call('LRANGE', queue .. 'active', 0, -1) end
for _, id in ipairs(ids) do
  local job = queue .. id
  if redis.call('GET', job .. ':lock') == token then
    local call = base .. '@call:' .. id
    local before = redis.call('HGET', job, 'before')
    local was_sent = ARGV[5] == '' or (before and before ~= '')
    if ARGV[5] ~= '' then
      if before and before ~= '' then redis.call('HSET', call, 'given', before) else redis.call('HDEL', call, 'given') end
    end
    local till = not process and tonumber(redis.call('HGET', job, 'till') or 0)
    if ARGV[5] == '2' and not was_sent and redis.call('HEXISTS', call, 'heard') == 0 then
      redis.call('LREM', queue .. 'active', 0, id)
      redis.call('DEL', job, job .. ':lock', call)
    elseif till and till <= now then
      local code = was_sent and 'worker_lost' or 'no_worker'
      if settle(base, scope, method, id, false, failure(code, was_sent), code, now, ARGV[6], ARGV[7]) == 1 then out[#out + 1] = id end
    else
      count = count + 1
      put_back(queue, id)
    end
  end
end
if count == 0 then return out end
if process == ARGV[7] then out[1] = 1
elseif process and process ~= '-' then ring(ARGV[6], process, scope, method) end
return out
