--[[ Put in front of every script.

KEYS[1]  the prefix of all keys; names are built from it (see store/keys.py)
ARGV[1]  how long a claim lives without a heartbeat, ms
ARGV[2]  how long a result is kept, ms
ARGV[3]  how long a job's id is remembered, ms
ARGV[4]  entries kept in the results stream
A script's own arguments start at ARGV[5]; `arg(1)` is the first of them.

Scripts may run twice with the same arguments: a job's field `last` ("<step>:<fence>") tells a replay, which writes
nothing and answers as before, from a second writer, which is refused.
]]
local call = redis.call
local LEASE, RESULT_TTL, ID_TTL, KEPT = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function arg(i) return ARGV[4 + i] end

local function key(...) return KEYS[1] .. table.concat({...}, ':') end

-- A number without exponent or fraction, whatever the Lua.
local function int(x) return string.format('%.0f', x) end

local server_time = call('TIME')
local now = tonumber(server_time[1]) * 1000 + math.floor(tonumber(server_time[2]) / 1000)
local NOW = int(now)

local FIELDS = {'state', 'stage', 'fence', 'last', 'op', 'attempt', 'max', 'prio', 'level', 'queue', 'seq', 'since',
  'on', 'backend', 'held', 'log', 'rf', 'cancel', 'batch', 'tags', 'losses', 'bound'}

-- The job's record, or nil. A tombstone counts as none.
local function load(id)
  local values = call('HMGET', key('job', id), unpack(FIELDS))
  if not values[3] then return nil end
  local job = {id = id, key = key('job', id)}
  for i, field in ipairs(FIELDS) do job[field] = values[i] end
  job.fence = tonumber(job.fence)
  return job
end

-- Whether this claim holds the job.
local function holds(job, fence)
  return job and job.state == 'running' and job.fence == tonumber(fence)
end

local function lease(job) return int(job.fence) .. '|' .. job.id end

local function index(job)
  if job.state == 'queued' or job.state == 'running' then return key('index', job.state, job.stage) end
  return key('index', job.state)
end

-- Move the job in the indexes.
local function move(job, state, stage)
  call('ZREM', index(job), job.id)
  job.state, job.stage = state, stage
  call('ZADD', index(job), job.seq, job.id)
end

-- Move the job to a node's set; '' for no node.
local function place(job, node)
  if job.on == node then return end
  if job.on and job.on ~= '' then call('SREM', key('on', job.on), job.id) end
  if node ~= '' then call('SADD', key('on', node), job.id) end
  call('HSET', job.key, 'on', node)
  job.on = node
end

-- Write down in the heap how many live jobs a backend has for its weight; nothing where it may be given to none.
local function weigh_backend(record, url)
  call('ZADD', key('heap', record.model), 'XX', call('SCARD', key('assigned', url)) / record.weight, url)
end

-- Let jobs be given to a backend. One that joins below the level of the others catches up by steps, see acquire.
local function open_backend(record, url)
  local heap, joining = key('heap', record.model), key('joining', record.model)
  local score = call('SCARD', key('assigned', url)) / record.weight
  if not call('ZSCORE', heap, url) then
    for _, other in ipairs(call('ZRANGE', heap, 0, -1)) do
      if call('HEXISTS', joining, other) == 0 then
        if tonumber(call('ZSCORE', heap, other)) > score then call('HSET', joining, url, '0') end
        break
      end
    end
  end
  call('ZADD', heap, score, url)
end

-- Let no more jobs be given to a backend.
local function close_backend(record, url)
  call('ZREM', key('heap', record.model), url)
  call('HDEL', key('joining', record.model), url)
end

-- Forget a backend. A job that still names it finds at its next acquire that it is not of its set.
local function forget_backend(record, url)
  close_backend(record, url)
  call('HDEL', key('backends'), url)
  call('DEL', key('assigned', url))
  call('PUBLISH', key('backends'), url)
end

-- Give the backend's slot back. A backend that was removed while in use goes with its last job.
local function release_backend(job)
  if job.held ~= '1' then return end
  call('HSET', job.key, 'held', '0')
  job.held = '0'
  local url = job.backend
  local assigned = key('assigned', url)
  if call('SREM', assigned, job.id) == 0 then return end
  local record = call('HGET', key('backends'), url)
  if not record then return end
  record = cjson.decode(record)
  if record.removing and call('SCARD', assigned) == 0 then
    forget_backend(record, url)
  else
    weigh_backend(record, url)
  end
end

-- Note that a message for the job is about to be published to this queue.
local function enqueue(job, queue)
  local seq = call('INCR', key('seq'))
  call('SADD', key('queues'), queue)
  call('ZADD', key('queued', job.level, queue), seq, job.id)
  call('HSET', job.key, 'queue', queue, 'published', NOW)
  job.queue = queue
end

-- The job no longer waits in its queue; returns the order in which its message was published.
local function dequeue(job)
  local queued = key('queued', job.level, job.queue)
  local seq = call('ZSCORE', queued, job.id)
  if seq then call('ZREM', queued, job.id) end
  return seq
end

local function add_times(job, worked, waited)
  if tonumber(worked) > 0 then call('HINCRBY', job.key, 'r_' .. job.stage, worked) end
  if tonumber(waited) > 0 then call('HINCRBY', job.key, 'q_' .. job.stage, waited) end
end

local function tell(job, what) call('PUBLISH', key('event', job.id), what) end

-- Let go of a claim: no lease, no node, no backend, no wish to cancel.
local function let_go(job)
  call('ZREM', key('leases'), lease(job))
  if job.cancel then call('ZREM', key('cancels'), job.id) end
  release_backend(job)
end

-- Put a job that runs, or waits in a queue, into (another) queue. Returns what a message needs.
local function requeue(job, step, stage, queue, node)
  call('HSET', job.key, 'state', 'queued', 'stage', stage, 'since', NOW, 'active', NOW, 'fence', int(job.fence),
    'last', step .. ':' .. int(job.fence))
  move(job, 'queued', stage)
  place(job, node)
  enqueue(job, queue)
  tell(job, 'queued ' .. stage)
  return {stage, queue, job.id, job.fence, tonumber(job.prio)}
end

-- Send a job back to init; `charged` when that is a new attempt.
local function start_over(job, step, charged)
  release_backend(job)
  if charged then call('HINCRBY', job.key, 'attempt', 1) end
  call('HSET', job.key, 'rf', '0')
  call('HDEL', job.key, 'sandboxes', 'bound')
  call('HDEL', key('data', job.id), 'init', 'rollout')
  return requeue(job, step, 'init', 'init', '')
end

-- Cut the results stream to its length, and remember where it was cut. In steps, so that most calls cost one XLEN.
local STEP = 1000
local function cut_results()
  local stream = key('results')
  if call('XLEN', stream) < KEPT + STEP then return end
  local oldest = call('XRANGE', stream, '-', '+', 'COUNT', STEP)
  local last = oldest[#oldest][1]
  call('XTRIM', stream, 'MAXLEN', '=', int(call('XLEN', stream) - STEP))
  call('SET', key('results', 'trimmed'), last)
end

-- End the job: the only way into a terminal state. `more` are further fields of the record and their values.
local function conclude(job, step, state, reason, more)
  let_go(job)
  if job.state == 'queued' then dequeue(job) end
  place(job, '')
  call('HSET', job.key, 'state', state, 'reason', reason, 'finished', NOW, 'since', NOW, 'active', NOW,
    'fence', int(job.fence), 'last', step .. ':' .. int(job.fence), unpack(more))
  call('HDEL', job.key, 'sandboxes', 'bound', 'op', 'process')
  call('HDEL', key('data', job.id), 'init')
  if job.log ~= job.rf then
    call('DEL', key('turns', job.id))
    call('HDEL', job.key, 'nturns', 'turn_bytes')
  end
  move(job, state, job.stage)
  local entry = {'job', job.id}
  if job.batch then entry[3], entry[4] = 'batch', job.batch end
  if job.tags then entry[#entry + 1] = 'tags'; entry[#entry + 1] = job.tags end
  call('XADD', key('results'), '*', unpack(entry))
  cut_results()
  call('ZADD', key('expiry'), int(now + RESULT_TTL), job.id)
  call('PEXPIRE', key('data', job.id), RESULT_TTL)
  if job.log ~= '0' then call('PEXPIRE', key('turns', job.id), RESULT_TTL) end
  call('PEXPIRE', job.key, ID_TTL)
  if job.batch then call('PEXPIRE', key('batch', job.batch), ID_TTL) end
  call('PUBLISH', key('done'), job.id)
  tell(job, 'ended ' .. state)
end

local function error_json(kind, stage, message, retryable)
  return cjson.encode({kind = kind, stage = stage, message = message, retryable = retryable})
end

-- End a job as cancelled.
local function conclude_cancelled(job, step)
  conclude(job, step, 'cancelled', 'cancelled',
    {'error', error_json('cancelled', job.stage, 'the job was cancelled', false)})
end

-- Who reads a queue: 'shared' by all nodes, or whether its one node is 'alive' or 'gone'.
local function reader(queue)
  local node, boot = string.match(queue, '^%a+%.(.*)%.([^.]*)$')
  if not node then return 'shared' end
  local seen = call('ZSCORE', key('nodes', 'seen'), node .. ' ' .. boot)
  return seen and tonumber(seen) > now and 'alive' or 'gone'
end

-- Queue an eval anew: where the sandboxes are that it needs, over from init when they are gone, anywhere when it needs
-- none. What was started ahead for it may have been used by now, and is of no more use.
local function repeat_eval(job, step, charged)
  local who = job.bound == '1' and reader(job.queue)
  if who == 'gone' then return start_over(job, step, charged) end
  release_backend(job)
  if charged then call('HINCRBY', job.key, 'attempt', 1) end
  if who then return requeue(job, step, 'eval', job.queue, job.on or '') end
  call('HDEL', job.key, 'sandboxes', 'bound')
  return requeue(job, step, 'eval', 'eval', '')
end

-- What to do with a job whose attempt failed and may do better: a message's parts, or nil when it has ended. Not
-- `charged` means that the job was not at fault. Eval is repeated alone while what it needs is there.
local function try_again_or_end(job, step, charged, state, reason, err)
  if not charged or tonumber(job.attempt) < tonumber(job.max) then
    if job.stage ~= 'eval' then return start_over(job, step, charged) end
    return repeat_eval(job, step, charged)
  end
  conclude(job, step, state, reason, {'error', err})
  return nil
end

