-- KEYS[1] the marker; ARGV: ms of the settling time after data loss, ttl of the marker in ms.
-- Returns the ms left of the settling time. It starts again if the marker is missing, as after a
-- flush, or is of another run of Redis, which may lack the last writes.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local known, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%w+) (%d+)$')
if known ~= run then
  since = now
  redis.call('SET', KEYS[1], run .. ' ' .. now, 'PX', ARGV[2])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return math.max(tonumber(since) + ARGV[1] - now, 0)
