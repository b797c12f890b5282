-- KEYS[1] a thread; ARGV: the record of a session that has ended, ms to remember it. Returns the
-- record that counts for the session: the one given, or that of an earlier end.
local held = redis.call('GET', KEYS[1])
if held then
  local found = cjson.decode(held)
  if found.session_id ~= cjson.decode(ARGV[1]).session_id then
    return ARGV[1]
  end
  if found.status ~= 'live' then
    return held
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
