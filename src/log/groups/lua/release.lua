-- A member gives back what it won't handle, so that others may take it at once.
--
-- KEYS 1 stream
-- ARGV 1 group  2 member  3… id, deliveries that it has had
-- returns how many were still its own
local call = redis.call
local given = 0
for i = 3, #ARGV, 2 do
  local row = call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  -- what is no longer in the log XCLAIM would drop unsaid: whoever takes it next tells of it
  if row and row[2] == ARGV[2] and #call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0 then
    call('XCLAIM', KEYS[1], ARGV[1], 'released', 0, ARGV[i], 'IDLE', 86400000, 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    given = given + 1
  end
end
return given
