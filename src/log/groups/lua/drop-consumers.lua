-- Forgets consumers that have nothing in hand; atomically, or an entry that one takes meanwhile would go with it.
--
-- KEYS 1 stream
-- ARGV 1 group  2 most idle ms of one that stays  3… consumers
-- returns the consumers that were forgotten
local call = redis.call
local wanted, gone = {}, {}
for i = 3, #ARGV do wanted[ARGV[i]] = true end
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
-- no stream, or no group
if consumers.err then return gone end
for _, consumer in ipairs(consumers) do
  local field = {}
  for i = 1, #consumer, 2 do field[consumer[i]] = consumer[i + 1] end
  if wanted[field.name] and field.pending == 0 and field.idle > tonumber(ARGV[2]) then
    call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], field.name)
    gone[#gone + 1] = field.name
  end
end
return gone
