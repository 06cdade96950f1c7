-- A member goes.
--
-- KEYS 1 members  2 details
-- ARGV 1 member
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 'ok'
