-- Says where carrying between the old stream and the log stands; where it stands nowhere yet, it begins with what comes now.
--
-- KEYS 1 places (hash)  2.. the old streams
-- ARGV 1 life of the places, ms  2 ms after which a starting server takes no notice of places that nobody carried from; '' = never
--      3 partitions of the log, then per partition: its newest entry '<epoch> <ms> <offset>'
--      then per old stream: the last of its ids that the caller has read in the log, '0-0' for none; counts where no place is known
-- returns the places: per old stream the id of the newest entry that is in the log, per partition the newest entry that
--         was looked at for the old stream
local call = redis.call
local places = KEYS[1]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local partitions = tonumber(ARGV[3])
local carriedAt = tonumber(call('HGET', places, 'at') or 0)
local isOld = ARGV[2] ~= '' and wall - carriedAt > tonumber(ARGV[2])

local function newestIn(stream)
  if call('EXISTS', stream) == 0 then return '0-0' end
  local info = call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local answer = {}
for i = 2, #KEYS do
  local field, seen = 'in:' .. KEYS[i], ARGV[3 + partitions + i - 1]
  local place = not isOld and call('HGET', places, field)
  if not place then place = seen ~= '0-0' and seen or newestIn(KEYS[i]) end
  call('HSET', places, field, place)
  answer[#answer + 1] = place
end
for partition = 0, partitions - 1 do
  local field = 'out:' .. partition
  local place = not isOld and call('HGET', places, field) or ARGV[4 + partition]
  call('HSET', places, field, place)
  answer[#answer + 1] = place
end
call('HSET', places, 'at', string.format('%.0f', wall))
call('PEXPIRE', places, ARGV[1])
return answer
