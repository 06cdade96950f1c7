-- Decides whose a device is, atomically. O(1): three keys, one slot. Order: flap, throttle, settle, loop breaker, take.
-- Nothing is written unless the session is taken.
--
-- KEYS 1 session (hash: id, at = admitted, t1 and t2 = last two takeovers of a holder not proved dead; Redis ms)
--      2 flaps  3 reconnects (lists of Redis ms, newest last)
-- ARGV 1 id that wants it  2 '1' = the device is paired  3 not after, Redis ms, or '' (a late copy must take nothing)
--      4 id that was proved dead, or ''  5 settle, ms  6 loop, ms: two takeovers within it
--      7 flaps: max  8 within, ms  9 a paired device is let in that long after its last, ms
--      10 reconnects: max now  11 within, ms  12 entries kept  13 life of the session, ms
-- returns {'admit' | 'takeover' (of id) | 'settle' | 'loop' (contested: id holds it) | 'flap' | 'throttle' | 'late',
--          wait, ms, Redis ms, id that holds or held it, admitted at}
local call = redis.call
local me, is_paired, not_after, dead = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local settle_ms, loop_ms, flap_max, flap_ms, cool_ms = unpack(ARGV, 5, 9)
local reconnect_max, reconnect_ms, reconnect_kept, life_ms = unpack(ARGV, 10, 13)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if not_after and now > not_after then return { 'late', 0, now, '', 0 } end

-- what lies in the future was written before the clock was set back: it counts as over
local function left(at, window)
  if not at then return 0 end
  local wait = window - (now - at)
  return wait > 0 and wait <= window and wait or 0
end
local function nth(key, n) return n > 0 and tonumber(call('LINDEX', key, -n) or nil) or nil end
local function note(key, kept, window)
  if kept <= 0 then return end
  call('RPUSH', key, string.format('%.0f', now))
  if call('LLEN', key) > kept then call('LPOP', key) end
  call('PEXPIRE', key, window)
end

local wait = left(nth(KEYS[2], tonumber(flap_max)), tonumber(flap_ms))
if wait > 0 and is_paired then wait = math.min(wait, left(nth(KEYS[2], 1), tonumber(cool_ms))) end
if wait > 0 then return { 'flap', wait, now, '', 0 } end
wait = left(nth(KEYS[3], tonumber(reconnect_max)), tonumber(reconnect_ms))
if wait > 0 then return { 'throttle', wait, now, '', 0 } end

local session = call('HMGET', KEYS[1], 'id', 'at', 't1', 't2')
local holder, since, t1, t2 = session[1] or '', tonumber(session[2] or nil), session[3], tonumber(session[4] or nil)
local decision, at = 'admit', now
if holder ~= '' and holder ~= me then
  decision = 'takeover'
  if holder ~= dead then
    wait = left(since, tonumber(settle_ms))
    if wait > 0 then return { 'settle', wait, now, holder, since } end
    wait = left(t2, tonumber(loop_ms))
    if wait > 0 then return { 'loop', wait, now, holder, since } end
    call('HSET', KEYS[1], 't1', string.format('%.0f', now))
    if t1 then call('HSET', KEYS[1], 't2', t1) end
  end
  -- the newest admission wins, also when the clock was set back
  if since and since >= at then at = since + 1 end
end
call('HSET', KEYS[1], 'id', me, 'at', string.format('%.0f', at))
call('PEXPIRE', KEYS[1], life_ms)
note(KEYS[2], tonumber(flap_max), flap_ms)
note(KEYS[3], tonumber(reconnect_kept), reconnect_ms)
return { decision, 0, now, holder, at }
