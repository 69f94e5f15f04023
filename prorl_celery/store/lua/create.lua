--[[ Accept jobs, all or none. A job of the same id and fingerprint is accepted already.

arg 1    id of this operation: a replay answers as the first run did
arg 2    most jobs not past init
arg 3    batch_id or ''
arg 4    group_id or ''
then 8 for each job: id, fingerprint, priority, broker level, most attempts, tags (JSON or ''), instance_id or '',
         the request (blob)

Returns {'ok', {1 or 0 for each job: made by this operation}}, {'conflict', id} or {'full', jobs not past init}.
Writes   job:*, data:*, index:queued:init, queued:*:init, batch:*, queues, seq; expiry, dead, index:* of a job forgotten
]]
local op, most, batch, group = arg(1), tonumber(arg(2)), arg(3), arg(4)
local WIDTH, FIRST = 8, 5
local fresh, answers = {}, {}
for i = FIRST, #ARGV - 4, WIDTH do
  local known = call('HMGET', key('job', arg(i)), 'hash', 'create_op')
  if not known[1] then
    fresh[#fresh + 1] = i
    answers[#answers + 1] = 1
  elseif known[1] ~= arg(i + 1) then
    return {'conflict', arg(i)}
  else
    answers[#answers + 1] = known[2] == op and 1 or 0
  end
end
local waiting = call('ZCARD', key('index', 'queued', 'init')) + call('ZCARD', key('index', 'running', 'init'))
if #fresh > 0 and waiting + #fresh > most then return {'full', waiting} end
for _, i in ipairs(fresh) do
  local id = arg(i)
  -- This write comes first: Redis, when full, refuses a script at its first write alone, and only one that can grow.
  local seq = int(call('INCR', key('seq')))
  forget(id)
  local job = {id = id, key = key('job', id), state = 'queued', stage = 'init', level = arg(i + 3), seq = seq}
  local record = {'hash', arg(i + 1), 'create_op', op, 'state', 'queued', 'stage', 'init', 'fence', '0', 'last', '',
    'attempt', '1', 'max', arg(i + 4), 'prio', arg(i + 2), 'level', job.level, 'seq', job.seq, 'created', NOW,
    'since', NOW, 'active', NOW, 'rf', '0', 'log', '0'}
  local function note(field, value)
    if value ~= '' then record[#record + 1] = field; record[#record + 1] = value end
  end
  note('tags', arg(i + 5))
  note('iid', arg(i + 6))
  note('batch', batch)
  note('group', group)
  call('HSET', job.key, unpack(record))
  call('HSET', key('data', id), 'spec', arg(i + 7))
  call('ZADD', index(job), job.seq, id)
  if batch ~= '' then call('ZADD', key('batch', batch), job.seq, id) end
  enqueue(job, 'init')
end
return {'ok', answers}
