-- KEYS[1] a worker; ARGV: its home, ms of the lease, ms to remember it, then fields and values.
-- A live lease is given only to the same home. Returns {epoch, 0}, or {0, ms it still runs}.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'home', 'until', 'epoch')
local left = (tonumber(held[2]) or 0) - now
if left > 0 and held[1] ~= ARGV[1] then
  return {0, left}
end
-- Using the clock keeps epochs growing even if Redis has lost the last one.
local epoch = math.max((tonumber(held[3]) or 0) + 1, now)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'home', ARGV[1], 'until', now + ARGV[2], 'epoch', epoch, unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {epoch, 0}
