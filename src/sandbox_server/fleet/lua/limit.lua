-- KEYS[1] what is counted of a tenant or a key; ARGV[1] what to do. Times are those of Redis.
local key, what = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function ms(seconds)
  return math.max(math.ceil(seconds * 1000), 1)
end

if what == 'rate' then
  -- ARGV: seconds of each, how many at once. Returns allowed, how many more, seconds to wait.
  local each, burst = tonumber(ARGV[2]), tonumber(ARGV[3])
  local at = math.max(tonumber(redis.call('GET', key) or 0), now) + each
  local ahead, most = at - now, burst * each
  if ahead > most + 1e-6 then
    return {'0', '0', tostring(ahead - most)}
  end
  redis.call('SET', key, string.format('%.6f', at), 'PX', ms(ahead + 1))
  return {'1', tostring(math.floor((most - ahead) / each + 1e-3)), '0'}
elseif what == 'hold' then
  -- ARGV: the holder, how many at a time, for how long it counts without being renewed.
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  if redis.call('ZCARD', key) >= tonumber(ARGV[3]) then
    return {'0'}
  end
  redis.call('ZADD', key, now + ARGV[4], ARGV[2])
  redis.call('PEXPIRE', key, ms(ARGV[4]))
  return {'1'}
elseif what == 'renew' then
  -- Also one that is missing: this Redis may have lost it.
  redis.call('ZADD', key, now + ARGV[3], ARGV[2])
  redis.call('PEXPIRE', key, ms(ARGV[3]))
elseif what == 'release' then
  redis.call('ZREM', key, ARGV[2])
elseif what == 'session' or what == 'sessions' then
  -- A hash: how many each server has, and until when that counts.
  local server, mine = ARGV[2], tonumber(ARGV[3])
  local sum, all = mine, redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local count, ends = string.match(all[i + 1], '(%d+) ([%d.]+)')
    if tonumber(ends) < now then
      redis.call('HDEL', key, all[i])
    elseif all[i] ~= server then
      sum = sum + tonumber(count)
    end
  end
  local kept_s = tonumber(ARGV[#ARGV])
  if what == 'session' then
    if sum >= tonumber(ARGV[4]) then
      return {'0', tostring(sum)}
    end
    mine = mine + 1
  end
  if mine == 0 then
    redis.call('HDEL', key, server)
  else
    redis.call('HSET', key, server, string.format('%d %.3f', mine, now + kept_s))
    redis.call('PEXPIRE', key, ms(kept_s))
  end
end
return {'1'}
