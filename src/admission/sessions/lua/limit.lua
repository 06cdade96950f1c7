-- A limiter: at most `max` within `window`, exactly.
--
-- KEYS 1 list of Redis ms, newest last
-- ARGV 1 'look' (changes nothing) | 'take' (notes it if it is within the limit) | 'note' (notes it in any case)
--      2 max  3 window, ms  4 entries kept
-- returns ms until one more is within the limit; 0 = now
local call = redis.call
local how, max, window, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wait = 0
local oldest = how ~= 'note' and tonumber(call('LINDEX', KEYS[1], -max) or nil)
-- what lies in the future was written before the clock was set back
if oldest and oldest <= now then wait = math.max(0, window - (now - oldest)) end
if how == 'note' or how == 'take' and wait == 0 then
  call('RPUSH', KEYS[1], string.format('%.0f', now))
  if call('LLEN', KEYS[1]) > kept then call('LPOP', KEYS[1]) end
  call('PEXPIRE', KEYS[1], window)
end
return wait
