-- Puts an entry into the dead letters, where the oldest make room; it is acknowledged by whoever calls this.
-- dead letter: id, n (deliveries), r (reason), h (failures, JSON), then the entry's own fields
local function bury(dead, state, bound, id, deliveries, reason, history, fields)
  redis.call('XADD', dead, '*', 'id', id, 'n', deliveries, 'r', reason, 'h', history, unpack(fields))
  local over = redis.call('XLEN', dead) - tonumber(bound)
  if over > 0 then
    redis.call('XTRIM', dead, 'MAXLEN', '=', bound)
    redis.call('HINCRBY', state, 'deadDropped', over)
  end
end

local MAX_FAILURES = 20
-- its failures with one more, JSON; the oldest go when there are too many
local function withFailure(failures, field, failure)
  local text = redis.call('HGET', failures, field)
  if not text then return '[' .. failure .. ']' end
  local ok, list = pcall(cjson.decode, text)
  -- what can't be read can't be added to
  if not ok then return '[' .. failure .. ']' end
  if #list < MAX_FAILURES then return string.sub(text, 1, -2) .. ',' .. failure .. ']' end
  table.remove(list, 1)
  list[#list + 1] = cjson.decode(failure)
  return cjson.encode(list)
end

-- what was redriven has the id that it had in the log among its fields
local function unwrapped(id, fields)
  if fields[1] ~= 'id' then return id, fields end
  local own = {}
  for i = 3, #fields do own[i - 2] = fields[i] end
  return fields[2], own
end
