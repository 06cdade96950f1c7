-- Writes a session again that Redis may have lost or never heard of: the newest admission wins.
--
-- KEYS 1 session
-- ARGV 1 id  2 admitted at, Redis ms  3 life of the session, ms  4 id that was proved dead, or ''
-- returns {1 = it is held now, admitted at, id that lost it or '', 1 = it was held before} | {0 = a newer one holds it, admitted at, that one's id, 0}
local call = redis.call
local session = call('HMGET', KEYS[1], 'id', 'at')
local holder, since = session[1] or '', tonumber(session[2] or nil) or 0
local at = tonumber(ARGV[2])
if holder == ARGV[1] then
  call('PEXPIRE', KEYS[1], ARGV[3])
  return { 1, since, '', 1 }
end
if holder ~= '' and holder ~= ARGV[4] and since >= at then return { 0, since, holder, 0 } end
call('HSET', KEYS[1], 'id', ARGV[1], 'at', string.format('%.0f', at))
call('PEXPIRE', KEYS[1], ARGV[3])
return { 1, at, holder, 0 }
