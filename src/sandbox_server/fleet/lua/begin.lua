-- KEYS[1] a thread; ARGV: the new record, then session, epoch and status of the expected predecessor
-- ('' for none). Returns whether that matched. A retry whose first answer was lost succeeds again.
local held = redis.call('GET', KEYS[1])
if held then
  local found = cjson.decode(held)
  if found.session_id == cjson.decode(ARGV[1]).session_id then
    return 1
  end
  if found.session_id ~= ARGV[2] or found.epoch ~= tonumber(ARGV[3]) or found.status ~= ARGV[4] then
    return 0
  end
elseif ARGV[2] ~= '' then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
