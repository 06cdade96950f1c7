-- Takes or renews the right to carry, or gives it up.
--
-- KEYS 1 lease (process id)  2 places (hash), which say when somebody last had it
-- ARGV 1 process id  2 lease, ms; 0 = give it up  3 life of the places, ms
-- returns 1 if this process has it, else 0
local call = redis.call
local holder = call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  call('DEL', KEYS[1])
  return 0
end
local time = call('TIME')
call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
call('HSET', KEYS[2], 'at', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
call('PEXPIRE', KEYS[2], ARGV[3])
return 1
