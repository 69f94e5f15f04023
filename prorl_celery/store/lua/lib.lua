--[[ Put in front of every script: what all need. `life.lua`, how a job moves through its life, follows.

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
  'on', 'process', 'backend', 'held', 'log', 'rf', 'nturns', 'cancel', 'batch', 'tags', 'losses', 'lost', 'sandboxes',
  'bound', 'going_on', 'stall'}

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

local function ended(job) return job.state ~= 'queued' and job.state ~= 'running' end

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

-- A job of that id expired before a purge saw it: take it off the lists that it is still on.
local function forget(id)
  if call('ZREM', key('expiry'), id) == 0 then return end
  call('ZREM', key('dead'), id)
  for _, state in ipairs({'completed', 'failed', 'cancelled', 'timed_out'}) do
    call('ZREM', key('index', state), id)
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

-- Note what happened to the job: for those who listen now, and for those who ask later. An entry is
-- "<number> <ms> <what>"; the numbers go on where old entries were cut.
local MOST_EVENTS = 2000
local function tell(job, what)
  local events = key('events', job.id)
  local last = call('LINDEX', events, -1)
  local number = last and tonumber(string.match(last, '^%d+')) or 0
  local entry = int(number + 1) .. ' ' .. NOW .. ' ' .. what
  if call('RPUSH', events, entry) > MOST_EVENTS then call('LTRIM', events, -MOST_EVENTS, -1) end
  call('PUBLISH', key('event', job.id), entry)
end

local function tally_many(number, ...) call('HINCRBY', key('counts'), table.concat({...}, ':'), number) end

local function tally(...) tally_many(1, ...) end

local function error_json(kind, stage, message, retryable)
  return cjson.encode({kind = kind, stage = stage, message = message, retryable = retryable})
end

-- Who reads a queue: 'shared' by all nodes, or whether its one node is 'alive' or 'gone'.
local function reader(queue)
  local node, boot = string.match(queue, '^%a+%.(.*)%.([^.]*)$')
  if not node then return 'shared' end
  local seen = call('ZSCORE', key('nodes', 'seen'), node .. ' ' .. boot)
  return seen and tonumber(seen) > now and 'alive' or 'gone'
end

-- Turns in the log of this attempt.
local function logged(job) return job.log == job.rf and tonumber(job.nturns or 0) or 0 end

-- The jobs that run on a node, each {id, process, fence}.
local function running_on(node)
  local running = {}
  for _, id in ipairs(call('SMEMBERS', key('on', node))) do
    local record = call('HMGET', key('job', id), 'state', 'process', 'fence')
    if record[1] == 'running' then running[#running + 1] = {id, record[2], record[3]} end
  end
  return running
end

-- Remember how many jobs ran in a process that was lost, since not all may lapse in one sweep. Returns that number.
local REMEMBERED = 600000
local function company(process, seen)
  local remembered = key('lost', process)
  local most = math.max(seen, tonumber(call('GET', remembered) or 0))
  call('SET', remembered, int(most), 'PX', REMEMBERED)
  return most
end
