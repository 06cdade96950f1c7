-- Of a gap that several members see, one tells.
--
-- KEYS 1 state
-- ARGV 1 epoch  2 first offset  3 last offset; both 0: the epoch itself is the news
-- returns the first offset that nobody has told yet, 0 = all was told
local call = redis.call
if ARGV[3] == '0' then
  if call('HGET', KEYS[1], 'toldTurn') == ARGV[1] then return 0 end
  call('HSET', KEYS[1], 'toldTurn', ARGV[1])
  return 1
end
local epoch, upTo = unpack(call('HMGET', KEYS[1], 'toldEpoch', 'toldUpTo'))
upTo = epoch == ARGV[1] and tonumber(upTo) or 0
if tonumber(ARGV[3]) <= upTo then return 0 end
call('HSET', KEYS[1], 'toldEpoch', ARGV[1], 'toldUpTo', ARGV[3])
return math.max(tonumber(ARGV[2]), upTo + 1)
