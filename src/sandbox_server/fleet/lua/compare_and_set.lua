-- KEYS[1] the key; ARGV: what it holds ('' for nothing), what it is to hold, for how many ms.
-- A repeated call whose first answer was lost succeeds again.
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] and held ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
