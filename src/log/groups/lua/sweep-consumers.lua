-- Removes consumers that hold nothing and whose members don't live; with what is pending a consumer stays.
--
-- KEYS 1 stream
-- ARGV 1 group  2 least idle, ms  3… members that live
-- returns how many went
local call = redis.call
local living = {}
for i = 3, #ARGV do living[ARGV[i]] = true end
local gone = 0
for _, consumer in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local field = {}
  for i = 1, #consumer, 2 do field[consumer[i]] = consumer[i + 1] end
  if not living[field.name] and field.pending == 0 and field.idle >= tonumber(ARGV[2]) then
    call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], field.name)
    gone = gone + 1
  end
end
return gone
