-- Makes a daemon the worker of methods: the newest registration wins. Jobs that others had in work go back to the queue.
-- KEYS 1 registry
-- ARGV 1 base  2 scope  3 process  4 daemon  5 mode  6 inboxes  7 not after, Redis ms  8… method, dedupe, fence (of modes but 'new'), three each
--      new       always
--      recover   as new, unless a newer one than `fence` has it
--      reassert  keeps `fence`, unless a newer one has it
-- → {'late'} | {fence of new registrations, then for each method: its fence, '0' = a newer one has it, 1 = jobs wait, 1 = it was there}
local base, scope, self, daemon, mode, inboxes = unpack(ARGV, 1, 6)
local t = redis.call('TIME')
-- somebody newer may have it since
if t[1] * 1000 + t[2] / 1000 > tonumber(ARGV[7]) then return { 'late' } end
local fresh = t[1] * 1000000 + t[2]
local current = {}
for i = 8, #ARGV, 3 do
  local entry = redis.call('HGET', KEYS[1], ARGV[i])
  current[i] = entry
  local fence = tonumber(string.match(entry or '', '^%d+') or 0)
  if fence >= fresh then fresh = fence + 1 end
end
local out = { string.format('%.0f', fresh) }
local is_held = false
for i = 8, #ARGV, 3 do
  local method, dedupe, mine = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local fence, process, old = string.match(current[i] or '', '^(%d+)|([^|]*)|([^|]*)')
  local queue = base .. method .. ':'
  local is_there = process == self and old == daemon
  local set = mode == 'reassert' and mine or out[1]
  if mode == 'reassert' and is_there then set = fence
  elseif mode ~= 'new' and not is_there and fence and tonumber(fence) > tonumber(mine) then set = '0' end
  if set ~= '0' then
    is_held = true
    local entry = set .. '|' .. self .. '|' .. daemon .. '|' .. dedupe
    if entry ~= current[i] then redis.call('HSET', KEYS[1], method, entry) end
    if not is_there then
      if process and process ~= '-' then
        send(inboxes, process, '{"type":"rpc-replaced","scope":"' .. scope .. '","method":"' .. method .. '","daemon":"' .. old .. '","fence":"' .. fence .. '"}')
      end
      local holder = self .. '|' .. daemon .. '|'
      for _, id in ipairs(redis.call('LRANGE', queue .. 'active', 0, -1)) do
        local lock = redis.call('GET', queue .. id .. ':lock') or ''
        if string.sub(lock, 1, #holder) ~= holder then put_back(queue, id) end
      end
    end
  end
  out[#out + 1] = set
  out[#out + 1] = redis.call('EXISTS', queue .. 'wait')
  out[#out + 1] = is_there and 1 or 0
end
if is_held then redis.call('PERSIST', KEYS[1]) end
return out
