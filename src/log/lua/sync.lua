-- A reading pod's heartbeat: commits its position, sees whether acknowledged entries vanished, samples the tail.
--
-- KEYS 1 stream  2 meta  3 segments  4 offsets (hash)  5 producers  6..8 idempotency buckets
-- ARGV 1 pod name  2 process id  3 'claim' (this process takes the pod's place) or ''
--      4 epoch to begin if one must begin  5..7 watermark: epoch, ms, offset  8 'exact' (look for that very entry) or ''
--      9 position to commit '<id> <offset>', '' = none
--      10 the entry was not there: the newest one '<ms>-<offset>' that is, where a new epoch branches off, else ''
-- returns {'ok' | 'fenced' | 'forked' (the entry is not there, and nothing was changed: call again with 10), epoch, Redis ms, last ms, last offset, first offset, history, saved '<id> <offset> <epoch>', bytes}
local call, fmt = redis.call, string.format
local stream, meta, offsets = KEYS[1], KEYS[2], KEYS[4]
local pod, process = ARGV[1], ARGV[2]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local m = call('HMGET', meta, 'epoch', 'offset', 'ms', 'first', 'history', 'bytes')
local epoch, offset, last = m[1], tonumber(m[2] or 0), tonumber(m[3] or 0)
local first, history = tonumber(m[4] or 1), m[5] or ''
-- its format: saved-position.ts
local record = call('HGET', offsets, pod)
local saved, holder = '', nil
if record then saved, holder = string.match(record, '^(%S+ %d+ %S+) (%S+) %d+$') end
saved = saved or ''
-- '-': a trim wrote the record for a group that had not committed yet
if holder and holder ~= '-' and holder ~= process and ARGV[3] ~= 'claim' then
  return {'fenced', epoch or '', wall, last, offset, first, history, saved, tonumber(m[6] or 0)}
end

local hasStream = call('EXISTS', stream) == 1
local reason, tail, lost
if not epoch or not hasStream then
  -- a group of a back end may have made an empty one, before anything was appended
  if hasStream and (offset > 0 or call('XLEN', stream) > 0) then
    call('DEL', KEYS[3])
    first = offset + 1
    local newest = call('XREVRANGE', stream, '+', '-', 'COUNT', 10)
    for _, entry in ipairs(newest) do
      local ms, seq = string.match(entry[1], '^(%d+)-(%d+)$')
      last = math.max(last, tonumber(ms))
      -- a stranger's id says nothing about ours
      if entry[2][1] == seq then offset = math.max(offset, tonumber(seq)) end
    end
    if newest[1] then
      -- what survived is one segment, so that it still counts and will be trimmed
      local head = tonumber(string.match(call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1], '%-(%d+)$'))
      first = math.max(1, math.min(offset, head))
      local size = redis.pcall('MEMORY', 'USAGE', stream)
      if type(size) ~= 'number' then size = 0 end
      call('RPUSH', KEYS[3], fmt('%.0f %.0f %.0f %.0f', offset, last, size, wall))
      call('HSET', meta, 'bytes', fmt('%.0f', size))
    end
    reason, tail, lost = 'meta', fmt('%.0f-%.0f', last, offset), ''
  else
    -- of a log that was there, the meta knows the end; of one that was wiped, at least the caller knows what it had seen
    lost = ''
    if offset > 0 then lost = fmt('%.0f-%.0f', last, offset)
    elseif tonumber(ARGV[7]) > 0 then lost = ARGV[6] .. '-' .. ARGV[7] end
    reason, tail, first, last = epoch and 'deleted' or 'new', '0-0', offset + 1, wall
    call('DEL', KEYS[3], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
    call('HDEL', meta, 'bytes', 'openBytes', 'openCount')
    redis.pcall('XGROUP', 'CREATE', stream, 'pod:' .. pod, '0-0', 'MKSTREAM')
  end
elseif ARGV[5] == epoch and tonumber(ARGV[7]) > 0 then
  local id, seen = ARGV[6] .. '-' .. ARGV[7], tonumber(ARGV[7])
  if seen > offset or tonumber(ARGV[6]) > last then
    reason = 'behind'
  elseif ARGV[8] == 'exact' and seen >= first and #call('XRANGE', stream, id, id) == 0 then
    reason = 'forked'
  end
  if reason and ARGV[10] == '' then return {'forked', epoch, wall, last, offset, first, history, saved, tonumber(m[6] or 0)} end
  tail, lost = ARGV[10], id
end
if reason then
  epoch = ARGV[4]
  history = string.sub(fmt('%s,%s,%s,%s;', epoch, tail, reason, lost) .. history, 1, 600)
  call('HSET', meta, 'epoch', epoch, 'offset', fmt('%.0f', offset), 'ms', fmt('%.0f', last), 'first', fmt('%.0f', first), 'history', history)
end

-- a position of another epoch is not committed: the reader must first find its place in this one
if ARGV[9] ~= '' and ARGV[5] == epoch then
  call('HSET', offsets, pod, fmt('%s %s %s %.0f', ARGV[9], epoch, process, wall))
elseif ARGV[3] == 'claim' then
  if saved == '' then saved = fmt('%.0f-%.0f %.0f %s', last, offset, offset, epoch) end
  call('HSET', offsets, pod, fmt('%s %s %.0f', saved, process, wall))
end
return {'ok', epoch, wall, last, offset, first, history, saved, tonumber(m[6] or 0)}
