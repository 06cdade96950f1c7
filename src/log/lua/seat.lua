-- Puts a pod's group where the pod stands. Refuses under another epoch; never makes a stream.
--
-- KEYS 1 stream  2 meta
-- ARGV 1 group  2 id of the last dispatched entry  3 its offset  4 epoch
-- returns 'ok', 'made' (the group was not there), 'gone' (no stream) or 'epoch'
local call = redis.call
if call('EXISTS', KEYS[1]) == 0 then return 'gone' end
local m = call('HMGET', KEYS[2], 'epoch', 'offset')
if m[1] ~= ARGV[4] then return 'epoch' end
local added = 0
local info = call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do if info[i] == 'entries-added' then added = info[i + 1] end end
-- Redis computes a group's lag from this count
local read = string.format('%.0f', math.max(0, added - math.max(0, tonumber(m[2]) - tonumber(ARGV[3]))))
local r = redis.pcall('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2], 'ENTRIESREAD', read)
if not r.err then return 'ok' end
if not string.find(r.err, 'NOGROUP', 1, true) then return redis.error_reply(r.err) end
call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'ENTRIESREAD', read)
return 'made'
