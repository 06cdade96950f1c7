-- Cuts a partition's oldest entries because somebody says so, whoever has not read them.
--
-- KEYS 1 stream  2 meta  3 segments
-- ARGV 1 epoch for which the place was chosen  2 ms of the newest entry that goes  3 its offset
-- returns {'ok', entries cut} or {'epoch'} (another one began, nothing was cut)
local call, fmt = redis.call, string.format
local stream, meta, segments = KEYS[1], KEYS[2], KEYS[3]
local m = call('HMGET', meta, 'epoch', 'offset', 'first', 'bytes', 'openBytes', 'openCount')
if m[1] ~= ARGV[1] then return {'epoch'} end
local through = math.min(tonumber(ARGV[3]), tonumber(m[2]))
local first, bytes = tonumber(m[3] or 1), tonumber(m[4] or 0)
if through < first then return {'ok', 0} end

for _, group in ipairs(call('EXISTS', stream) == 1 and call('XINFO', 'GROUPS', stream) or {}) do
  local field = {}
  for i = 1, #group, 2 do field[group[i]] = group[i + 1] end
  local unread = through - math.max(tonumber(string.match(field['last-delivered-id'], '%-(%d+)$')), first - 1)
  if unread > 0 then call('HINCRBY', meta, 'unread:' .. field.name, fmt('%.0f', unread)) end
end

-- whole segments are known; of the one that the cut goes through, the entries are measured as the append measured them
local from, id = first, '-'
while true do
  local segment = call('LINDEX', segments, 0)
  local last, ms, size = string.match(segment or '', '^(%d+) (%d+) (%d+) ')
  if not last or tonumber(last) > through then break end
  call('LPOP', segments)
  bytes, from, id = bytes - tonumber(size), tonumber(last) + 1, '(' .. ms .. '-' .. last
end
local part = 0
if from <= through then
  while true do
    local entries = call('XRANGE', stream, id, ARGV[2] .. '-' .. fmt('%.0f', through), 'COUNT', 100)
    for _, entry in ipairs(entries) do
      id = '(' .. entry[1]
      local seq = string.match(entry[1], '%-(%d+)$')
      if entry[2][1] == seq and tonumber(seq) >= from then
        part = part + #entry[2][2] + 40
        for i = 4, #entry[2], 2 do part = part + #entry[2][i] + 10 end
      end
    end
    if #entries < 100 then break end
  end
  local segment = call('LINDEX', segments, 0)
  if segment then
    local last, ms, size, closed = string.match(segment, '^(%d+) (%d+) (%d+) (%d+)$')
    part = math.min(part, tonumber(size))
    call('LSET', segments, 0, fmt('%s %s %.0f %s', last, ms, tonumber(size) - part, closed))
  else
    local open = tonumber(m[5] or 0)
    part = math.min(part, open)
    call('HSET', meta, 'openBytes', fmt('%.0f', open - part),
      'openCount', fmt('%.0f', math.max(0, tonumber(m[6] or 0) - (through - from + 1))))
  end
end
local cut = call('XTRIM', stream, 'MINID', '=', ARGV[2] .. '-' .. fmt('%.0f', through + 1))
call('HSET', meta, 'bytes', fmt('%.0f', math.max(0, bytes - part)), 'first', fmt('%.0f', through + 1))
return {'ok', cut}
