-- KEYS[1] a worker; ARGV: its epoch, the state it leaves in. Ends its lease now.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], 'until', now, 'state', ARGV[2])
return 1
