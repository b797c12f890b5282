-- KEYS[1] a thread; ARGV: the record of a session that has ended, ms to remember it. Returns the
-- record that counts for the session: the one given, that of an earlier end, or that of a worker that
-- has taken the session over.
local held = redis.call('GET', KEYS[1])
if held then
  local found, record = cjson.decode(held), cjson.decode(ARGV[1])
  if found.session_id ~= record.session_id then
    return ARGV[1]
  end
  if found.status ~= 'live' or (found.claims or 0) > (record.claims or 0) then
    return held
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
