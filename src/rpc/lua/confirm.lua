-- A worker is at work on calls that were given to it: they are known from now on, whether or not their caller has heard of them.
-- KEYS 1 registry (for its slot)
-- ARGV 1 base  2 method  3 prefix of the tokens of its jobs  4… ids
-- → ids that were cancelled while nobody knew of them
local base, method, prefix = ARGV[1], ARGV[2], ARGV[3]
local cancelled = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local job, call = base .. method .. ':' .. id, base .. '@call:' .. id
  local known = redis.call('HMGET', job, 'dl', 'finishedOn', 'rt')
  if known[1] and not known[2] and redis.call('GET', job .. ':lock') == prefix .. id then
    local hash = redis.call('HGET', call, 'hash')
    if hash == '' then cancelled[#cancelled + 1] = id end
    -- it had gone already: the same id is no other call, and this one does not run again
    if not hash or hash == '' then
      redis.call('HSET', call, 'hash', '?', 'method', method, 'process', known[3] or '', 'given', '?')
    end
    redis.call('HSET', call, 'begun', 1)
    redis.call('PEXPIREAT', call, known[1] + 60000)
  end
end
return cancelled
