-- Retention without a leader: any pod may call it, it runs at most once an interval.
-- Cuts whole segments that are over a limit, older than what a disconnected client may still want, and read by every live group.
--
-- KEYS 1 stream  2 meta  3 segments  4 offsets  5 producers
-- ARGV 1 interval, ms  2 entries to keep  3 bytes to keep  4 age to keep, ms  5 ms for which nothing is cut (recovery window + heartbeat)
--      6 a pod that is silent for longer loses its group, ms
-- returns {'none' | 'recent'} or {'ok', entries cut, first offset, offset that every live group has read, reaped pods 'name=unread'…}
local call, fmt = redis.call, string.format
local stream, meta, segments, offsets, producers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local m = call('HMGET', meta, 'epoch', 'offset', 'first', 'bytes', 'trimmedAt', 'openBytes', 'openCount', 'ms', 'closedAt')
if not m[1] then return {'none'} end
if wall - tonumber(m[5] or 0) < tonumber(ARGV[1]) then return {'recent'} end
local offset, first, bytes = tonumber(m[2]), tonumber(m[3] or 1), tonumber(m[4] or 0)
local reapAfter = tonumber(ARGV[6])

-- after an outage all pods have been silent, and must first have had the time to say that they live
local mayReap = wall - tonumber(m[5] or 0) < math.max(reapAfter / 2, 4 * tonumber(ARGV[1]))

local floor, live, reaped = offset, {}, {}
-- their format: saved-position.ts
local saved = call('HGETALL', offsets)
for i = 1, #saved, 2 do
  local pod = saved[i]
  local at, of, seen = string.match(saved[i + 1], '^%S+ (%d+) (%S+) %S+ (%d+)$')
  at = tonumber(at or 0)
  -- of another epoch: it has yet to find its place in this one
  if of ~= m[1] then at = math.min(at, first - 1) end
  if mayReap and #reaped < 100 and wall - tonumber(seen or 0) > reapAfter then
    local unread = math.max(0, offset - at)
    call('HDEL', offsets, pod)
    redis.pcall('XGROUP', 'DESTROY', stream, 'pod:' .. pod)
    call('HDEL', meta, 'unread:pod:' .. pod)
    call('HINCRBY', meta, 'reapedUnread', fmt('%.0f', unread))
    reaped[#reaped + 1] = pod .. '=' .. fmt('%.0f', unread)
  else
    live['pod:' .. pod] = true
    floor = math.min(floor, at)
  end
end
if call('EXISTS', stream) == 1 then
  for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
    local field = {}
    for i = 1, #group, 2 do field[group[i]] = group[i + 1] end
    local name = field.name
    if not live[name] then
      local at = tonumber(string.match(field['last-delivered-id'], '%-(%d+)$'))
      if string.sub(name, 1, 4) == 'pod:' then
        -- a pod's by its prefix, though it never committed: from now on its silence counts
        call('HSET', offsets, string.sub(name, 5), fmt('%s %.0f %s - %.0f', field['last-delivered-id'], at, m[1], wall))
      elseif field.pending > 0 then
        at = tonumber(string.match(call('XPENDING', stream, name)[2], '%-(%d+)$')) - 1
      end
      floor = math.min(floor, at)
    end
  end
end

-- at a trickle a segment would stay open for ever, and its entries with it
if tonumber(m[7] or 0) > 0 and wall - tonumber(m[9] or 0) > tonumber(ARGV[4]) / 16 then
  call('RPUSH', segments, fmt('%.0f %.0f %.0f %.0f', offset, tonumber(m[8]), tonumber(m[6]), wall))
  call('HSET', meta, 'openBytes', 0, 'openCount', 0, 'closedAt', fmt('%.0f', wall))
end

local cutOffset, cutMs
while true do
  local segment = call('LINDEX', segments, 0)
  if not segment then break end
  local segOffset, segMs, segBytes, closed = string.match(segment, '^(%d+) (%d+) (%d+) (%d+)$')
  segOffset, closed = tonumber(segOffset), tonumber(closed)
  local isOver = offset - first + 1 > tonumber(ARGV[2]) or bytes > tonumber(ARGV[3]) or wall - closed > tonumber(ARGV[4])
  if not isOver or segOffset > floor or wall - closed < tonumber(ARGV[5]) then break end
  call('LPOP', segments)
  bytes, first, cutOffset, cutMs = bytes - tonumber(segBytes), segOffset + 1, segOffset, segMs
end
local cut = 0
if cutOffset then cut = call('XTRIM', stream, 'MINID', '=', cutMs .. '-' .. fmt('%.0f', cutOffset + 1)) end

local batches = call('HGETALL', producers)
for i = 1, #batches, 2 do
  if wall - tonumber(string.match(batches[i + 1], '(%d+)$')) > 600000 then call('HDEL', producers, batches[i]) end
end
call('HSET', meta, 'trimmedAt', fmt('%.0f', wall), 'bytes', fmt('%.0f', bytes), 'first', fmt('%.0f', first))
return {'ok', cut, fmt('%.0f', first), fmt('%.0f', floor), unpack(reaped)}
