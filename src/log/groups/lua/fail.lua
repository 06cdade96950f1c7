-- A delivery failed: it is noted, and at the last one the entry becomes a dead letter.
--
-- KEYS 1 stream (the log, or what was redriven)  2 failures  3 dead letters  4 state
-- ARGV 1 group  2 member  3 'drop' (of a stream of the group's own) or ''  4 what its failures are kept under begins with
--      5 id  6 deliveries  7 most deliveries  8 the failure, JSON  9 its reason  10 most dead letters
-- returns 'again', 'dead', 'taken' (another has it), 'gone' (nobody has it) or 'trimmed' (it is no longer in the log)
local call = redis.call
local stream, group, id, deliveries = KEYS[1], ARGV[1], ARGV[5], tonumber(ARGV[6])
local row = call('XPENDING', stream, group, id, id, 1)[1]
if not row then return 'gone' end
if row[2] ~= ARGV[2] or row[4] ~= deliveries then return 'taken' end
local field = ARGV[4] .. id
local history = withFailure(KEYS[2], field, ARGV[8])
if deliveries < tonumber(ARGV[7]) then
  call('HSET', KEYS[2], field, history)
  return 'again'
end
local entry = call('XRANGE', stream, id, id)[1]
if entry then
  local original, fields = unwrapped(id, entry[2])
  bury(KEYS[3], KEYS[4], ARGV[10], original, deliveries, ARGV[9], history, fields)
end
call('XACK', stream, group, id)
if ARGV[3] == 'drop' then call('XDEL', stream, id) end
call('HDEL', KEYS[2], field)
return entry and 'dead' or 'trimmed'
