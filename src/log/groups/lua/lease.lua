-- Of an ordered group: who has a partition. A lease that ended is anybody's; the token of a new holder is higher than any before it.
--
-- KEYS 1 state
-- ARGV 1 member  2 lease, ms  3 'take' (if nobody else has it), 'seize' (also if another's lease ended), 'keep' or 'give'  4 token (of 'keep' and 'give')
-- returns {token, holder}: the member has it if the holder is the member
local call, fmt = redis.call, string.format
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local holder, token, till = unpack(call('HMGET', KEYS[1], 'holder', 'token', 'until'))
local isFree = not holder or holder == '' or holder == ARGV[1] or (ARGV[3] == 'seize' and wall > tonumber(till))
local isMine = holder == ARGV[1] and token == ARGV[4]
if ARGV[3] == 'give' then
  if isMine then call('HSET', KEYS[1], 'holder', '') end
  return {tonumber(token or 0), ''}
end
if ARGV[3] ~= 'keep' and isFree then
  token = fmt('%.0f', tonumber(token or 0) + 1)
  holder = ARGV[1]
  call('HSET', KEYS[1], 'holder', holder, 'token', token)
elseif not isMine then
  return {tonumber(token or 0), isFree and '' or holder}
end
call('HSET', KEYS[1], 'until', fmt('%.0f', wall + tonumber(ARGV[2])))
return {tonumber(token), holder}
