-- Puts a group to another place of a partition: what it had in hand is nobody's, and what failed has not failed yet. The group
-- is made if there is none. Its dead letters and what was redriven stay: they are no longer of the log.
--
-- KEYS 1 stream  2 meta  3 state  4 failures
-- ARGV 1 group  2 epoch for which the place was chosen, '' = the partition has no log yet  3 ms of the entry up to which it has read  4 its offset
-- returns {'ok', offset up to which it has read (more than 4 if that was trimmed meanwhile), entries that it had in hand}
--      or {'epoch'} (another one began), {'gone'} (the stream is gone, and no relay has noticed yet), and nothing was changed
local call, fmt = redis.call, string.format
local stream, group = KEYS[1], ARGV[1]
local m = call('HMGET', KEYS[2], 'epoch', 'offset', 'first')
if (m[1] or '') ~= ARGV[2] then return {'epoch'} end
local hasStream = call('EXISTS', stream) == 1
-- one that is made here would hide from the log that its own is gone
if m[1] and not hasStream then return {'gone'} end

local ms, offset, first = ARGV[3], tonumber(ARGV[4]), tonumber(m[3] or 1)
if offset < first - 1 then ms, offset = '0', first - 1 end
local id = fmt('%s-%.0f', ms, offset)

local released = 0
local isNew = true
if hasStream then
  for _, info in ipairs(call('XINFO', 'GROUPS', stream)) do
    for i = 1, #info, 2 do if info[i] == 'name' and info[i + 1] == group then isNew = false end end
  end
end
if isNew then
  call('XGROUP', 'CREATE', stream, group, id, 'MKSTREAM')
else
  -- in pieces, as Lua passes on some thousand values at most
  while true do
    local pending = call('XPENDING', stream, group, '-', '+', 1000)
    if #pending == 0 then break end
    local ids = {}
    for i, entry in ipairs(pending) do ids[i] = entry[1] end
    released = released + call('XACK', stream, group, unpack(ids))
  end
end
local added = 0
local info = call('XINFO', 'STREAM', stream)
for i = 1, #info, 2 do if info[i] == 'entries-added' then added = info[i + 1] end end
-- Redis computes a group's lag from this count
local read = fmt('%.0f', math.max(0, added - math.max(0, tonumber(m[2] or 0) - offset)))
call('XGROUP', 'SETID', stream, group, id, 'ENTRIESREAD', read)

-- those of redriven entries ('r:…') go on counting
for _, failed in ipairs(call('HKEYS', KEYS[4])) do
  if string.sub(failed, 1, 2) ~= 'r:' then call('HDEL', KEYS[4], failed) end
end
if m[1] then call('HSET', KEYS[3], 'floor', id, 'last', fmt('%.0f', offset), 'epoch', m[1])
else call('HDEL', KEYS[3], 'floor', 'last', 'epoch') end
-- who had the partition has it no more, while the fence (token) goes on rising; and gaps are told again where they are read again
if call('HEXISTS', KEYS[3], 'holder') == 1 then call('HSET', KEYS[3], 'holder', '') end
call('HDEL', KEYS[3], 'toldEpoch', 'toldUpTo')
-- from now on it counts as silent, should nobody read it
local time = call('TIME')
call('HSET', KEYS[3], 'seenAt', fmt('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return {'ok', offset, released}
