-- An entry that was delivered before is begun again: its delivery counts from now.
--
-- KEYS 1 stream
-- ARGV 1 group  2 member  3 id  4 deliveries up to now  5 'again' (an answer was lost: this one may have begun it) or ''
-- returns 'ok', 'taken' (another has it), 'gone' (nobody has it) or 'trimmed' (it is no longer in the log; acknowledged)
local call = redis.call
local row = call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not row then return 'gone' end
if row[2] == ARGV[2] and ARGV[5] == 'again' and row[4] == tonumber(ARGV[4]) + 1 then return 'ok' end
if row[2] ~= ARGV[2] or row[4] ~= tonumber(ARGV[4]) then return 'taken' end
-- JUSTID leaves the count alone, RETRYCOUNT sets it
if #call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'RETRYCOUNT', row[4] + 1, 'JUSTID') > 0 then return 'ok' end
call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 'trimmed'
