-- A page of entries together with what the log holds at that moment, so that what was trimmed meanwhile shows as a gap.
--
-- KEYS 1 stream  2 meta
-- ARGV 1 id after which to read ('0-0' = from the oldest)  2 most entries  3 most bytes (at least one entry comes)
-- returns {epoch, first offset, last offset, last ms, history, entries}
local call = redis.call
local m = call('HMGET', KEYS[2], 'epoch', 'first', 'offset', 'ms', 'history', 'bytes')
local first, offset, maxBytes = tonumber(m[2] or 1), tonumber(m[3] or 0), tonumber(ARGV[3])
local mean = math.max(64, tonumber(m[6] or 0) / math.max(1, offset - first + 1))
local count = math.max(1, math.min(tonumber(ARGV[2]), math.ceil(maxBytes / mean)))
local entries, size, kept = call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', count), 0, {}
for i, entry in ipairs(entries) do
  for j = 2, #entry[2], 2 do size = size + #entry[2][j] end
  if i > 1 and size > maxBytes then break end
  kept[i] = entry
end
return {m[1] or '', first, offset, tonumber(m[4] or 0), m[5] or '', kept}
