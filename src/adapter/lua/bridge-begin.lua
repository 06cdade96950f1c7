-- Says where carrying between the old stream and the log stands; where it stands nowhere yet, it begins with what comes now.
--
-- KEYS 1 places (hash)  2.. the old streams
-- ARGV 1 life of the places, ms  2 partitions of the log, then per partition: its newest entry '<epoch> <ms> <offset>'
-- returns the places: per old stream the id of the newest entry that is in the log, per partition the newest entry that
--         was looked at for the old stream
local call = redis.call
local places = KEYS[1]
for i = 2, #KEYS do
  if not call('HGET', places, 'in:' .. KEYS[i]) then
    local last = '0-0'
    if call('EXISTS', KEYS[i]) == 1 then
      local info = call('XINFO', 'STREAM', KEYS[i])
      for j = 1, #info, 2 do
        if info[j] == 'last-generated-id' then last = info[j + 1] end
      end
    end
    call('HSET', places, 'in:' .. KEYS[i], last)
  end
end
for partition = 0, tonumber(ARGV[2]) - 1 do
  local field = 'out:' .. partition
  if not call('HGET', places, field) then call('HSET', places, field, ARGV[3 + partition]) end
end
call('PEXPIRE', places, ARGV[1])
local answer = {}
for i = 2, #KEYS do answer[#answer + 1] = call('HGET', places, 'in:' .. KEYS[i]) end
for partition = 0, tonumber(ARGV[2]) - 1 do answer[#answer + 1] = call('HGET', places, 'out:' .. partition) end
return answer
