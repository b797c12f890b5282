-- KEYS[1] a worker. Returns the time in ms, then its fields and values.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
return {now, unpack(redis.call('HGETALL', KEYS[1]))}
