-- Copies entries of the log to the old streams and moves the place in the same step: each entry once, whoever tries.
--
-- KEYS 1 places (hash)  2.. the old streams
-- ARGV 1 field  2 the place as the caller knows it  3 the place behind these entries  4 life of the places, ms
--      5 entries that an old stream keeps, about
--      then per entry: which key, number of values, field and value in turn
-- returns '' or, if another one was here first, the place that it left; then nothing was written
local call = redis.call
local place = call('HGET', KEYS[1], ARGV[1])
if place and place ~= ARGV[2] then return place end
local at = 6
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local values = {}
  for i = 1, count do values[i] = ARGV[at + 1 + i] end
  call('XADD', KEYS[tonumber(ARGV[at])], 'MAXLEN', '~', ARGV[5], '*', unpack(values))
  at = at + 2 + count
end
call('HSET', KEYS[1], ARGV[1], ARGV[3])
call('PEXPIRE', KEYS[1], ARGV[4])
return ''
