-- Forgets members whose lease ended long ago; one that lives again meanwhile stays.
--
-- KEYS 1 members (sorted set: member id → end of its lease, Redis ms)  2 details (hash)
-- ARGV 1 those whose lease ended before that, Redis ms  2… members
-- returns the members that were forgotten
local call = redis.call
local gone = {}
for i = 2, #ARGV do
  local score = call('ZSCORE', KEYS[1], ARGV[i])
  if not score or tonumber(score) < tonumber(ARGV[1]) then
    call('ZREM', KEYS[1], ARGV[i])
    call('HDEL', KEYS[2], ARGV[i])
    gone[#gone + 1] = ARGV[i]
  end
end
return gone
