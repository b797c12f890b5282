-- KEYS[1] a worker, KEYS[2] its sessions, kept from expiring; ARGV: its epoch, ms of the lease, ms to
-- remember it, then fields and values. Returns {1, drain mode, the time in ms}, with 0 in the first
-- place if the lease has lapsed or belongs to another.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'epoch', 'until', 'drain')
if held[1] ~= ARGV[1] or tonumber(held[2]) < now then
  return {0, '', now}
end
redis.call('HSET', KEYS[1], 'until', now + ARGV[2], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PERSIST', KEYS[2])
return {1, held[3] or '', now}
