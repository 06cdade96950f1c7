-- Finds where an offset stands: ids rise with their ms, and so do offsets, so the range is halved.
--
-- KEYS 1 stream
-- ARGV 1 offset
-- returns the ms of that entry, or of the next one where it was deleted; false: nothing as new is there
local call = redis.call
local stream, wanted = KEYS[1], tonumber(ARGV[1])

-- the newest entry of ours with at most these ms; a stranger's first field is not its own sequence
local function newest(upTo)
  local from = upTo
  while true do
    local entry = call('XREVRANGE', stream, from, '-', 'COUNT', 1)[1]
    if not entry then return nil end
    local ms, seq = string.match(entry[1], '^(%d+)-(%d+)$')
    if entry[2][1] == seq then return tonumber(ms), tonumber(seq) end
    from = '(' .. entry[1]
  end
end

local high, last = newest('+')
if not high or last < wanted then return false end
local low = tonumber(string.match(call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1], '^(%d+)'))
while low < high do
  local middle = math.floor((low + high) / 2)
  local _, offset = newest(string.format('%.0f', middle))
  if offset and offset >= wanted then high = middle else low = middle + 1 end
end
return string.format('%.0f', low)
