-- Acknowledges what is still the member's at the delivery that it was handed; what another has taken stays the other's.
--
-- KEYS 1 stream (the log, or what was redriven)  2 failures
-- ARGV 1 group  2 member  3 'drop' (of a stream of the group's own: acknowledged entries are deleted) or ''
--      4 what their failures are kept under begins with  5 1 if any of them had failures  6 most entries that the member may hold
--      7 first id  8 last id of all these  9 ids of those that were delivered once, a space behind each  10… id, deliveries of the others
-- returns {id, 'taken' (another has it, or it was delivered again) | 'gone' (nobody has it: acknowledged before, or the group was reset), …}
local call = redis.call
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local held = {}
local from, count = ARGV[7], tonumber(ARGV[6])
while true do
  local rows = call('XPENDING', stream, group, from, ARGV[8], count, me)
  for _, row in ipairs(rows) do held[row[1]] = row[4] end
  if #rows < count then break end
  from = '(' .. rows[#rows][1]
end
local mine, lost = {}, {}
local function sort(id, deliveries)
  if held[id] == deliveries then
    mine[#mine + 1] = id
  else
    lost[#lost + 1] = id
    lost[#lost + 1] = #call('XPENDING', stream, group, id, id, 1) > 0 and 'taken' or 'gone'
  end
end
for id in string.gmatch(ARGV[9], '%S+') do sort(id, 1) end
for i = 10, #ARGV, 2 do sort(ARGV[i], tonumber(ARGV[i + 1])) end
if #mine > 0 then
  call('XACK', stream, group, unpack(mine))
  if ARGV[3] == 'drop' then call('XDEL', stream, unpack(mine)) end
  if ARGV[5] == '1' then
    local fields = {}
    for i, id in ipairs(mine) do fields[i] = ARGV[4] .. id end
    call('HDEL', KEYS[2], unpack(fields))
  end
end
return lost
