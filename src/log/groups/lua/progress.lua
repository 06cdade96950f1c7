-- How far the group has come in one partition: keeps the id up to which all is done, should the group be lost, and that it is read.
--
-- KEYS 1 stream  2 meta  3 state
-- ARGV 1 group  2 newest id that the member read, or ''  3 epoch of that
-- returns {epoch, history, last offset, id of the oldest entry in the stream or '', pending (-1: there is no group), id of the oldest pending or '', newest offset that any member read, Redis ms}
local call = redis.call
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local m = call('HMGET', KEYS[2], 'epoch', 'history', 'offset')
local oldest = call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local summary = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if summary.err then
  if not string.find(summary.err, 'NOGROUP', 1, true) then error(summary) end
  return {m[1] or '', m[2] or '', tonumber(m[3] or 0), oldest and oldest[1] or '', -1, '', 0, wall}
end
local function offsetOf(id) return tonumber(string.match(id or '', '%-(%d+)$') or 0) end
local done = ARGV[2]
if summary[1] > 0 then
  local ms, offset = string.match(summary[2], '^(%d+)-(%d+)$')
  done = ms .. '-' .. string.format('%.0f', tonumber(offset) - 1)
end
local floor, last, of = unpack(call('HMGET', KEYS[3], 'floor', 'last', 'epoch'))
if of ~= m[1] then floor, last = '0-0', '0' end
if ARGV[2] ~= '' and ARGV[3] == m[1] then
  if offsetOf(done) > offsetOf(floor) then floor = done end
  last = string.format('%.0f', math.max(offsetOf(ARGV[2]), tonumber(last or 0)))
  call('HSET', KEYS[3], 'floor', floor, 'last', last, 'epoch', ARGV[3])
end
-- by this a group that was left in peace is known to be silent
call('HSET', KEYS[3], 'seenAt', string.format('%.0f', wall))
return {m[1] or '', m[2] or '', tonumber(m[3] or 0), oldest and oldest[1] or '', summary[1], summary[2] or '', tonumber(last or 0), wall}
