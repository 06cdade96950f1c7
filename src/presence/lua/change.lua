-- Changes which of a user's sockets are held by a process, and tells the user's room which devices came and went by it. One step: what is
-- told comes in the order of what happened, whichever processes did it, and nobody dies between the two.
--
-- KEYS 1 presence (hash: '<device>|<socket id>' → '<process>|<fence, Redis ms>|<since, Redis ms>'; the device escaped, and empty for a
--        socket that has none)
-- ARGV 1 process  2 'bury' (all its sockets go) or ''  3 most sockets of a user  4 channel of the user's room  5 user, as JSON
--      6 room, as JSON  7 id of what is told, without quotes
--      then three for each socket: its field; 'take' (it came here), 'again' (it is still here, unless it went on to another process
--      later) or 'leave' (it is gone, if this process still has it); ms since it connected, which is its fence
-- returns {devices that came, devices that went, sockets written again that were missing, sockets over the limit, sockets that Redis
--         refused to take}
local call, match = redis.call, string.match
local key, process = KEYS[1], ARGV[1]
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local ms = function(value) return string.format('%.0f', value) end

local before, change, size = {}, {}, 0
for _, field in ipairs(call('HKEYS', key)) do
  local device = match(field, '^[^|]*')
  before[device] = (before[device] or 0) + 1
  size = size + 1
end

local function count(field, by)
  local device = match(field, '^[^|]*')
  change[device] = (change[device] or 0) + by
  size = size + by
end

local function remove(field, value)
  if not value or match(value, '^[^|]*') ~= process then return end
  call('HDEL', key, field)
  count(field, -1)
end

local restored, over, refused = 0, 0, 0

-- out of memory is no reason to tell nothing of the rest
local function write(field, fence, since)
  local reply = redis.pcall('HSET', key, field, process .. '|' .. ms(fence) .. '|' .. ms(since))
  if type(reply) == 'number' then return true end
  refused = refused + 1
end

local function hold(field, kind, fence)
  local value = call('HGET', key, field)
  if not value then
    if size >= tonumber(ARGV[3]) then
      over = over + 1
    elseif write(field, fence, fence) then
      if kind == 'again' then restored = restored + 1 end
      count(field, 1)
    end
    return
  end
  local holder, old, since = match(value, '^([^|]*)|(%d+)|(%d+)$')
  local last = tonumber(old) or 0
  if holder == process or (kind == 'again' and last >= fence) then return end
  write(field, math.max(fence, last + 1), tonumber(since) or fence)
end

if ARGV[2] == 'bury' then
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do remove(all[i], all[i + 1]) end
end
-- who goes makes room for who comes
for i = 8, #ARGV, 3 do
  if ARGV[i + 1] == 'leave' then remove(ARGV[i], call('HGET', key, ARGV[i])) end
end
for i = 8, #ARGV, 3 do
  if ARGV[i + 1] ~= 'leave' then hold(ARGV[i], ARGV[i + 1], wall - tonumber(ARGV[i + 2])) end
end

local came, went = 0, 0
for device, by in pairs(change) do
  local was = before[device] or 0
  local isThere = was + by > 0
  if isThere ~= (was > 0) then
    local name = ''
    if device ~= '' then
      local text = string.gsub(device, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
      name = ',"device":' .. cjson.encode(text)
    end
    local event = '{"user":' .. ARGV[5] .. name .. ',"online":' .. tostring(isThere) .. ',"at":' .. ms(wall) .. '}'
    local meta = '{"room":' .. ARGV[6] .. ',"id":"' .. ARGV[7] .. '-' .. (came + went) .. '","at":' .. ms(wall) .. '}'
    call('PUBLISH', ARGV[4], '["presence",' .. event .. ',' .. meta .. ']')
    if isThere then came = came + 1 else went = went + 1 end
  end
end
return {came, went, restored, over, refused}
