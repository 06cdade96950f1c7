-- A process died: what it had in one scope is away since it was last known to live.
-- KEYS 1 registry  2 processes (of another slot)
-- ARGV 1 process  2 since, Redis ms  3 grace, ms
-- → number of registrations
local now = redis_ms()
-- it came back before this was executed
if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0) > now then return 0 end
local since = math.min(tonumber(ARGV[2]), now)
local entries = redis.call('HGETALL', KEYS[1])
local count = 0
for i = 1, #entries, 2 do
  local fence, process, _, dedupe = string.match(entries[i + 1], '^(%d+)|([^|]*)|([^|]*)|(.*)$')
  if process == ARGV[1] then
    redis.call('HSET', KEYS[1], entries[i], fence .. '|-|' .. since .. '|' .. dedupe)
    count = count + 1
  end
end
if #entries > 0 then tidy(KEYS[1], now, tonumber(ARGV[3])) end
return count
