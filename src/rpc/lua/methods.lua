-- What a user serves, and how much of it waits.
-- KEYS 1 registry
-- ARGV 1 base
-- → method, entry, jobs that wait, jobs in work, … four each
local entries = redis.call('HGETALL', KEYS[1])
local out = {}
for i = 1, #entries, 2 do
  local queue = ARGV[1] .. entries[i] .. ':'
  out[#out + 1] = entries[i]
  out[#out + 1] = entries[i + 1]
  out[#out + 1] = redis.call('LLEN', queue .. 'wait')
  out[#out + 1] = redis.call('LLEN', queue .. 'active')
end
return out
