-- Takes over what members hold that no longer live, in the order of the log. Taking is no delivery: that counts when it begins,
-- so an entry that a killed member had only read ahead isn't blamed for it.
--
-- KEYS 1 stream (the log, or what was redriven)  2 failures  3 dead letters  4 state
-- ARGV 1 group  2 member  3 'drop' (of a stream of the group's own) or ''  4 what failures are kept under begins with
--      5 least idle, ms  6 id from which to look, '-' = the oldest  7 most entries  8 most deliveries  9 most dead letters
--      10 Redis ms for failures  11 whose: 'others' (that don't live), 'mine' (what it holds without knowing), 'all' (it has the partition to itself)
--      12… members that live
-- returns {id from which to look next or '' (all was looked at), dead letters made, entries that are no longer in the log, first and last id of those,
--          {id, fields, deliveries, holder before}…}
local call = redis.call
local stream, group, me, most, maxDeliveries = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[7]), tonumber(ARGV[8])
local living = {}
for i = 12, #ARGV do living[ARGV[i]] = true end
local whose = ARGV[11]
local PAGE = 100
local taken, dead, trimmed, firstTrimmed, lastTrimmed = {}, 0, 0, '', ''
local from, next = ARGV[6], ''
for _ = 1, 20 do
  local rows
  if whose == 'mine' then rows = call('XPENDING', stream, group, 'IDLE', ARGV[5], from, '+', PAGE, me)
  else rows = call('XPENDING', stream, group, 'IDLE', ARGV[5], from, '+', PAGE) end
  for _, row in ipairs(rows) do
    local id, holder, deliveries = row[1], row[2], row[4]
    if whose ~= 'others' or (holder ~= me and not living[holder]) then
      if #taken >= most then next = id; break end
      local entry = call('XRANGE', stream, id, id)[1]
      if not entry then
        call('XACK', stream, group, id)
        call('HDEL', KEYS[2], ARGV[4] .. id)
        trimmed, lastTrimmed = trimmed + 1, id
        if firstTrimmed == '' then firstTrimmed = id end
      elseif holder ~= me and holder ~= 'released' and deliveries >= maxDeliveries then
        local original, fields = unwrapped(id, entry[2])
        local failure = cjson.encode({at = tonumber(ARGV[10]), member = holder, reason = 'lost'})
        bury(KEYS[3], KEYS[4], ARGV[9], original, deliveries, 'lost', withFailure(KEYS[2], ARGV[4] .. id, failure), fields)
        call('XACK', stream, group, id)
        if ARGV[3] == 'drop' then call('XDEL', stream, id) end
        call('HDEL', KEYS[2], ARGV[4] .. id)
        dead = dead + 1
      else
        if holder ~= me then
          if holder ~= 'released' then
            local failure = cjson.encode({at = tonumber(ARGV[10]), member = holder, reason = 'lost'})
            call('HSET', KEYS[2], ARGV[4] .. id, withFailure(KEYS[2], ARGV[4] .. id, failure))
          end
          call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
        end
        taken[#taken + 1] = {id, entry[2], deliveries, holder}
      end
    end
  end
  if next ~= '' or #rows < PAGE then from = ''; break end
  from = '(' .. rows[#rows][1]
end
if next == '' then next = from end
return {next, dead, trimmed, firstTrimmed, lastTrimmed, unpack(taken)}
