-- Gives dead letters back to the group. Each is in one of the two streams at any time, so it comes back once.
--
-- KEYS 1 dead letters  2 redriven
-- ARGV 1 group  2… ids of dead letters
-- returns the ids that were there, and have come back
local call = redis.call
local moved = {}
for i = 2, #ARGV do
  local letter = call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if letter then
    if #moved == 0 then
      local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[1], '0-0', 'MKSTREAM')
      if type(made) == 'table' and made.err and string.sub(made.err, 1, 9) ~= 'BUSYGROUP' then error(made) end
    end
    -- id, n, r and h stand before the fields of the entry itself
    local fields = letter[2]
    call('XADD', KEYS[2], '*', 'id', fields[2], unpack(fields, 9))
    call('XDEL', KEYS[1], letter[1])
    moved[#moved + 1] = letter[1]
  end
end
return moved
