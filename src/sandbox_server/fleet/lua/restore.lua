-- ARGV: live records of one worker. KEYS: the thread of each; then, except in a cluster, the session
-- of each and the hash of the worker's sessions. Returns for each whether it owns its thread: not if
-- that session has ended or was taken over, or one of the same or a later generation has begun.
local count, answers = #ARGV, {}
for i, text in ipairs(ARGV) do
  local record, held = cjson.decode(text), redis.call('GET', KEYS[i])
  local ours = true
  if held then
    local found = cjson.decode(held)
    if found.session_id == record.session_id then
      ours = found.status == 'live' and (found.claims or 0) <= (record.claims or 0)
    else
      ours = found.generation < record.generation
    end
  end
  answers[i] = ours and 1 or 0
  if ours then
    redis.call('SET', KEYS[i], text)
    if #KEYS > count then
      redis.call('SET', KEYS[count + i], text)
      redis.call('HSET', KEYS[#KEYS], record.session_id, text)
    end
  end
end
return answers
