-- For how long workers have been able to renew their leases, by their heartbeats. After an outage of
-- Redis every lease has lapsed, and time in which nobody was answered says nothing about a worker.
-- KEYS: the marker, the uptime, then, except in a cluster, the list of workers. ARGV: ms without any
-- heartbeat that count as an outage, ms to remember, '1' if a worker calls that has just renewed.
-- Returns {run id, ms since the last outage or 0 during one, the most there was between two outages},
-- all of this data alone: the count starts again if the marker is missing, as after a flush, or is of
-- another run of Redis, which may lack the last writes.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local outage, keep = tonumber(ARGV[1]), ARGV[2]
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local known, born = string.match(redis.call('GET', KEYS[1]) or '', '^(%w+) (%d+)$')
if known ~= run then
  born = now
  redis.call('SET', KEYS[1], run .. ' ' .. now)
  redis.call('HSET', KEYS[2], 'born', now, 'last', now, 'since', now, 'most', 0)
end
born = tonumber(born)
redis.call('PEXPIRE', KEYS[1], keep)

local held = redis.call('HMGET', KEYS[2], 'born', 'last', 'since', 'most')
local last, since, most = tonumber(held[2]), tonumber(held[3]), tonumber(held[4])
if tonumber(held[1]) ~= born then
  -- A server of an earlier version has set the marker, and counts from then.
  last, since, most = now, now, now - born
end

local heard = now
if ARGV[3] ~= '1' then
  -- Workers of an earlier version only list themselves.
  local latest = KEYS[3] and redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
  heard = math.min(tonumber(latest or 0), now)
end
if last > now and ARGV[3] == '1' then
  most, last, since = math.max(most, last - since), now, now -- The clock was set back.
elseif heard > last then
  if heard - last > outage then
    most, since = math.max(most, last - since), heard
  end
  last = heard
end
redis.call('HSET', KEYS[2], 'born', born, 'last', last, 'since', since, 'most', most)
redis.call('PEXPIRE', KEYS[2], keep)

local up = now - since
if now - last > outage or last > now then
  most, up = math.max(most, last - since), 0
end
return {run, up, math.max(most, up)}
