-- Appends a batch to one partition: all of it or nothing, once however often it is sent.
--
-- KEYS 1 stream  2 meta (hash)  3 segments (list)  4 producers (hash)  5..7 idempotency buckets (hashes)
-- ARGV 1 notAfter: Redis ms; later than that nothing is written
--      2 epoch to begin if one must begin
--      3 soft cap, entries  4 soft cap, bytes (a segment is 1/16 of it; the hard cap is twice it)
--      5 idempotency window, ms  6 most ids in a bucket
--      7 producer  8 batch number of the producer, rising
--      9..11 watermark of the caller: epoch, ms, offset of the newest entry that it read or had acknowledged
--      12 number of ids, then (index of the item from 0, 16-byte id)*
--      then per item: number of attachments, payload, attachment*
-- returns {'ok', epoch, ms, offset before the first new entry, first offset in the log, Redis ms, duplicates 'index=ms-offset,…'}
--      or {'late' | 'stale' | 'full', Redis ms}, and nothing was written
local call, pcall, fmt = redis.call, redis.pcall, string.format
local stream, meta, segments, producers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)

-- 1. the same batch again: the same answer
local producer, number = ARGV[7], tonumber(ARGV[8])
local record = call('HGET', producers, producer)
if record then
  local seq, epoch, ms, base, first, dups = string.match(record, '^(%d+) (%S+) (%d+) (%d+) (%d+) (%S*)')
  seq = tonumber(seq)
  if seq == number then return {'ok', epoch, tonumber(ms), tonumber(base), tonumber(first), wall, dups} end
  if seq > number then return {'stale', wall} end
end

-- 2. the caller has been told 'unavailable' by now
if wall > tonumber(ARGV[1]) then return {'late', wall} end

-- 3. the state of the partition
local maxEntries, maxBytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local m = call('HMGET', meta, 'epoch', 'offset', 'ms', 'bytes', 'openBytes', 'openCount', 'first', 'history')
local epoch, offset, last = m[1], tonumber(m[2] or 0), tonumber(m[3] or 0)
local bytes, openBytes, openCount = tonumber(m[4] or 0), tonumber(m[5] or 0), tonumber(m[6] or 0)
local first, history = tonumber(m[7] or 1), m[8] or ''
local now = math.max(wall, last)
local hasStream = call('EXISTS', stream) == 1

-- 4. idempotency ids, looked up before anything is written
local idCount = tonumber(ARGV[12])
local idOf, bucket, known = {}, nil, {}
local window = tonumber(ARGV[5])
if idCount > 0 then
  local slot = math.floor(wall / window)
  bucket = KEYS[5 + slot % 3]
  local ids = {}
  for i = 1, idCount do
    ids[i] = ARGV[12 + 2 * i]
    idOf[tonumber(ARGV[11 + 2 * i])] = ids[i]
  end
  if hasStream then
    local here, before = call('HMGET', bucket, unpack(ids)), call('HMGET', KEYS[5 + (slot - 1) % 3], unpack(ids))
    local unknown = 0
    for i = 1, idCount do
      known[ids[i]] = here[i] or before[i] or nil
      if not known[ids[i]] then unknown = unknown + 1 end
    end
    -- the answer to a known id takes no room
    if unknown > 0 and call('HLEN', bucket) + unknown > tonumber(ARGV[6]) then return {'full', wall} end
  end
end

local function beginEpoch(reason, tail, lost)
  epoch = ARGV[2]
  history = string.sub(fmt('%s,%s,%s,%s;', epoch, tail, reason, lost) .. history, 1, 600)
end
-- segments, producers and ids would point at entries that are gone
local function vanished(reason)
  -- of a log that was there, the meta knows the end; of one that was wiped, at least the caller knows what it had seen
  local lost = ''
  if offset > 0 then lost = fmt('%.0f-%.0f', last, offset)
  elseif tonumber(ARGV[11]) > 0 then lost = ARGV[10] .. '-' .. ARGV[11] end
  beginEpoch(reason, '0-0', lost)
  call('DEL', segments, producers, KEYS[5], KEYS[6], KEYS[7])
  known, bytes, openBytes, openCount, first, now = {}, 0, 0, 0, offset + 1, wall
end
if not epoch then
  local newest = hasStream and call('XREVRANGE', stream, '+', '-', 'COUNT', 10) or {}
  if newest[1] then
    for _, entry in ipairs(newest) do
      local ms, seq = string.match(entry[1], '^(%d+)-(%d+)$')
      last = math.max(last, tonumber(ms))
      -- a stranger's id says nothing about ours
      if entry[2][1] == seq then offset = math.max(offset, tonumber(seq)) end
    end
    now = math.max(now, last)
    -- what survived is one segment, so that it still counts and will be trimmed
    local head = tonumber(string.match(call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1], '%-(%d+)$'))
    first = math.max(1, math.min(offset, head))
    bytes = pcall('MEMORY', 'USAGE', stream)
    if type(bytes) ~= 'number' then bytes = 0 end
    call('DEL', segments)
    call('RPUSH', segments, fmt('%.0f %.0f %.0f %.0f', offset, last, bytes, wall))
    beginEpoch('meta', fmt('%.0f-%.0f', last, offset), '')
  else
    vanished('new')
  end
elseif not hasStream then
  vanished('deleted')
elseif ARGV[9] == epoch and (tonumber(ARGV[11]) > offset or tonumber(ARGV[10]) > last) then
  beginEpoch('behind', fmt('%.0f-%.0f', last, offset), ARGV[10] .. '-' .. ARGV[11])
end

-- 5. the entries; the first field's name is the offset, which no stranger's entry has
local function add(fields)
  fields[1] = fmt('%.0f', offset + 1)
  local r = pcall('XADD', stream, fmt('%.0f-%.0f', now, offset + 1), unpack(fields))
  if type(r) == 'table' and r.err and string.find(r.err, 'equal or smaller', 1, true) then
    -- a stranger's id is ahead: go on above it, with offsets as dense as ever
    local top = call('XINFO', 'STREAM', stream)
    for i = 1, #top, 2 do
      if top[i] == 'last-generated-id' then
        local ms, seq = string.match(top[i + 1], '^(%d+)-(%d+)$')
        ms, seq = tonumber(ms), tonumber(seq)
        if ms > now then now = ms end
        if ms == now and seq > offset then now = now + 1 end
      end
    end
    r = pcall('XADD', stream, fmt('%.0f-%.0f', now, offset + 1), unpack(fields))
  end
  if type(r) == 'table' and r.err then error(r) end
  offset = offset + 1
end

local base, fresh, dups, at, item = offset, {}, {}, 13 + 2 * idCount, 0
while at <= #ARGV do
  local attachments = tonumber(ARGV[at])
  local id = idOf[item]
  if id and known[id] then
    dups[#dups + 1] = item .. '=' .. known[id]
  else
    local fields, size = {'', ARGV[at + 1]}, #ARGV[at + 1] + 40
    for i = 1, attachments do
      fields[#fields + 1] = 'a'
      fields[#fields + 1] = ARGV[at + 1 + i]
      size = size + #ARGV[at + 1 + i] + 10
    end
    add(fields)
    bytes, openBytes, openCount = bytes + size, openBytes + size, openCount + 1
    if id then
      known[id] = fmt('%.0f-%.0f', now, offset)
      fresh[#fresh + 1] = id
      fresh[#fresh + 1] = known[id]
    end
  end
  at, item = at + 2 + attachments, item + 1
end
if offset > base then last = now end
if #fresh > 0 then
  call('HSET', bucket, unpack(fresh))
  -- a fixed end: steady traffic must not renew a bucket for ever
  call('PEXPIREAT', bucket, fmt('%.0f', (math.floor(wall / window) + 2) * window))
end

-- 6. hard caps, by whole segments
if openCount > 0 and (openCount >= maxEntries / 16 or openBytes >= maxBytes / 16) then
  call('RPUSH', segments, fmt('%.0f %.0f %.0f %.0f', offset, now, openBytes, wall))
  openBytes, openCount = 0, 0
  local from, cutOffset, cutMs = first, nil, nil
  while bytes > maxBytes * 1.875 or offset - first + 1 > maxEntries * 1.875 do
    local segment = call('LPOP', segments)
    if not segment then break end
    local segOffset, segMs, segBytes = string.match(segment, '^(%d+) (%d+) (%d+)')
    cutOffset, cutMs, bytes = tonumber(segOffset), segMs, bytes - tonumber(segBytes)
    first = cutOffset + 1
  end
  if cutOffset then
    for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
      local name, delivered
      for i = 1, #group, 2 do
        if group[i] == 'name' then name = group[i + 1] elseif group[i] == 'last-delivered-id' then delivered = group[i + 1] end
      end
      local unread = cutOffset - math.max(tonumber(string.match(delivered, '%-(%d+)$')), from - 1)
      if unread > 0 then call('HINCRBY', meta, 'unread:' .. name, fmt('%.0f', unread)) end
    end
    call('XTRIM', stream, 'MINID', '=', cutMs .. '-' .. fmt('%.0f', cutOffset + 1))
  end
end

local duplicates = table.concat(dups, ',')
call('HSET', meta, 'epoch', epoch, 'offset', fmt('%.0f', offset), 'ms', fmt('%.0f', last), 'bytes', fmt('%.0f', bytes),
  'openBytes', fmt('%.0f', openBytes), 'openCount', openCount, 'first', fmt('%.0f', first), 'history', history)
call('HSET', producers, producer, fmt('%.0f %s %.0f %.0f %.0f %s %.0f', number, epoch, now, base, first, duplicates, wall))
return {'ok', epoch, now, base, first, wall, duplicates}
