-- A page of entries together with what the log holds at that moment, so that what was trimmed meanwhile shows as a gap.
--
-- KEYS 1 stream  2 meta
-- ARGV 1 id after which to read ('0-0' = from the oldest)  2 most entries  3 most bytes (at least one entry comes)
-- returns {epoch, first offset, last offset, last ms, entries}
local call = redis.call
local m = call('HMGET', KEYS[2], 'epoch', 'first', 'offset', 'ms')
local most, maxBytes = tonumber(ARGV[2]), tonumber(ARGV[3])
-- few at a time: nobody knows their sizes before, and what is read beyond the bytes is built for nothing
local CHUNK = 16
local kept, size, from = {}, 0, ARGV[1]
while #kept < most and size <= maxBytes do
  local count = math.min(CHUNK, most - #kept)
  local entries = call('XRANGE', KEYS[1], '(' .. from, '+', 'COUNT', count)
  for _, entry in ipairs(entries) do
    for j = 2, #entry[2], 2 do size = size + #entry[2][j] end
    if #kept > 0 and size > maxBytes then break end
    kept[#kept + 1] = entry
    from = entry[1]
  end
  if #entries < count then break end
end
return {m[1] or '', tonumber(m[2] or 1), tonumber(m[3] or 0), tonumber(m[4] or 0), kept}
