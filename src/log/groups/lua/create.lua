-- Makes the group in one partition, if it isn't there. Never a stream under a living meta: that would hide that the log was deleted.
--
-- KEYS 1 stream  2 meta  3 redriven  4 state
-- ARGV 1 group, as Redis has it  2 id behind which it begins  3 epoch that this is of, '' = none
-- returns 'made', 'there' or 'deleted' (the stream is not there, and the log's next append begins a new epoch)
local call = redis.call
local function create(stream, id, ...)
  local r = redis.pcall('XGROUP', 'CREATE', stream, ARGV[1], id, ...)
  if type(r) == 'table' and r.err then
    if string.sub(r.err, 1, 9) == 'BUSYGROUP' then return 'there' end
    error(r)
  end
  return 'made'
end
create(KEYS[3], '0-0', 'MKSTREAM')
if call('EXISTS', KEYS[1]) == 0 and call('HEXISTS', KEYS[2], 'epoch') == 1 then return 'deleted' end
local made = create(KEYS[1], ARGV[2], 'MKSTREAM')
if made == 'made' then call('HSET', KEYS[4], 'floor', ARGV[2], 'last', string.match(ARGV[2], '%-(%d+)$'), 'epoch', ARGV[3]) end
return made
