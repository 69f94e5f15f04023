--[[ Check the members of an index, a queue, a set or the heap: that each stands there by right.

arg 1         'look' or 'mend'
arg 2         the key's name, without the prefix
arg 3         where to go on, '0' at first; '' for the members that are named
arg 4         about how many to look at
arg 5         how long after its time something counts as forgotten by the sweep, ms
arg 6, 7, ... members

Returns {findings {kind, member, text, mark, member}, messages {stage, queue, id, fence, priority}, where to go on}.
Writes  with 'look' nothing; with 'mend' that key, and `assigned:<url>`, `heap:<model>`, `joining:<model>` with it
]]
local name, cursor, count, patience = arg(2), arg(3), arg(4), tonumber(arg(5))
local own = key(name)
local first, rest = string.match(name, '^([^:]+):?(.*)$')
local swept = call('ZCOUNT', key('nodes', 'seen'), '(' .. NOW, '+inf') > 0
local scans = {zset = 'ZSCAN', set = 'SSCAN', hash = 'HSCAN'}

local GLANCE = {'state', 'stage', 'fence', 'level', 'queue', 'on', 'backend', 'held', 'cancel', 'batch', 'stall'}

-- What of a job's record is asked for here, or nil, also for one that lacks what each must have: `check_jobs` sees to
-- that. Less than `load` reads, since there are many.
local function glance(id)
  local values = call('HMGET', key('job', id), unpack(GLANCE))
  if not (values[1] and values[2] and values[3] and values[4]) then return nil end
  local job = {id = id}
  for i, field in ipairs(GLANCE) do job[field] = values[i] end
  job.fence = tonumber(job.fence)
  return job
end

local function mark_of(job) return job and int(job.fence) or '' end

local function strike(member) return function() call('ZREM', own, member) end end

-- A member that stands in a zset, and where `ok` says that it should not.
local function stray(member, job, ok, kind, text)
  if not ok then found(kind, member, text, mark_of(job), strike(member)) end
end

-- What the sweep should have seen to long ago; nobody sweeps where no node is alive.
local function overdue(member, score, kind, text)
  if swept and tonumber(score) < now - patience then found(kind, member, text, score, function() end) end
end

local function live(job) return job and (job.state == 'queued' or job.state == 'running') end

local RULES = {}

function RULES.index(id)
  local job = glance(id)
  stray(id, job, job and index(job) == own, 'stray-index', 'is listed in ' .. name .. ' and is not that')
end

function RULES.queued(id)
  local job = glance(id)
  local ok = job and job.state == 'queued' and job.queue and key('queued', job.level, job.queue) == own
  stray(id, job, ok, 'stray-queued', 'is said to wait in ' .. rest .. ' and does not')
end

function RULES.leases(member, score)
  local fence, id = string.match(member, '^(%d+)|(.*)$')
  local job = id and glance(id)
  local ok = job and holds(job, fence)
  stray(member, job, ok, 'stray-lease', 'is a lease of what does not run')
  -- 0: lapsed because its process is known to be dead, a moment ago.
  if ok and score ~= '0' then overdue(member, score, 'overdue-lease', 'has lapsed, and no sweep came') end
end

function RULES.cancels(id, score)
  local job = glance(id)
  local ok = job and job.state == 'running' and job.cancel
  stray(id, job, ok, 'stray-cancel', 'is to be cancelled, and is not running or was not asked to stop')
  if ok then overdue(id, score, 'overdue-cancel', 'was cancelled, and neither its worker nor a sweep obeyed') end
end

function RULES.on(id)
  local job = glance(id)
  if live(job) and job.on == rest then return end
  found('stray-placed', id, 'is said to be on node ' .. rest .. ' and is not', mark_of(job), function()
    call('SREM', own, id)
  end)
end

function RULES.batch(id)
  local job = glance(id)
  stray(id, job, job and job.batch == rest, 'stray-batch', 'is listed in batch ' .. rest .. ' and is not of it')
end

function RULES.expiry(id, score)
  local job = glance(id)
  local ok = job and not live(job)
  stray(id, job, ok, 'stray-expiry', 'is to expire, and has not ended')
  if ok then overdue(id, score, 'overdue-expiry', 'should have been purged long ago') end
end

function RULES.dead(id)
  local job = glance(id)
  stray(id, job, job and job.state == 'failed', 'stray-dead', 'is a dead letter, and has not failed')
end

function RULES.revoked(id, score)
  local job = glance(id)
  local ok = live(job) and call('HEXISTS', key('job', id), 'prompt') == 1
  stray(id, job, ok, 'stray-revoked', 'is revoked, and is no live job of a batch')
  if ok then overdue(id, score, 'overdue-revoked', 'was revoked, and neither its worker nor a sweep obeyed') end
end

function RULES.batches(id)
  stray(id, nil, call('EXISTS', dapo(id)) == 1, 'stray-batches', 'is listed as a batch and is none')
end

function RULES.batches_live(id)
  local b = load_batch(id)
  stray(id, nil, b and (b.state == 'filling' or b.state == 'waiting_for_prompts'), 'stray-batches',
    'is said to be filled and is not')
end

function RULES.batches_left(id, score)
  local b = load_batch(id)
  local ok = b and b.state == 'complete' and b.on_target == 'carry_over' and not b.adopted_by
  stray(id, nil, ok, 'stray-batches', 'is said to keep groups for another batch and does not')
  if ok then overdue(id, score, 'overdue-left', 'kept its groups for longer than anybody may adopt them') end
end

function RULES.stalled(id)
  local job = glance(id)
  local ok = job and job.state == 'running' and job.stall
  stray(id, job, ok, 'stray-stall', 'is said to stall, and does not')
end

local function registered(url)
  local text = call('HGET', key('backends'), url)
  return text and cjson.decode(text)
end

function RULES.assigned(id)
  local record = registered(rest)
  if not record then
    found('stray-assigned', id, 'is assigned to ' .. rest .. ', which is no backend', '', function()
      call('DEL', own)
    end)
    return
  end
  local job = glance(id)
  if job and job.state == 'running' and job.held == '1' and job.backend == rest then return end
  found('stray-assigned', id, 'is counted at ' .. rest .. ' and does not use it', mark_of(job), function()
    call('SREM', own, id)
    weigh_backend(record, rest)
  end)
end

function RULES.heap(url, score)
  local record = registered(url)
  if not record or record.model ~= rest or record.state ~= 'up' then
    found('stray-heap', url, 'is given to jobs of ' .. rest .. ' and should not be', '', strike(url))
    return
  end
  local weight = call('SCARD', key('assigned', url)) / record.weight
  if math.abs(tonumber(score) - weight) > 1e-6 * (1 + weight) then
    found('heap-score', url, 'counts ' .. score .. ' jobs for its weight and has ' .. weight, '', function()
      weigh_backend(record, url)
    end)
  end
end

function RULES.joining(url)
  if call('ZSCORE', key('heap', rest), url) then return end
  found('stray-joining', url, 'joins the backends of ' .. rest .. ' and is not among them', '', function()
    call('HDEL', own, url)
  end)
end

function RULES.backends(url, text)
  local record = cjson.decode(text)
  if record.state ~= 'up' or call('ZSCORE', key('heap', record.model), url) then return end
  found('not-in-heap', url, 'is up and given to nobody', '', function() open_backend(record, url) end)
end

local function judge(member, value)
  about = member
  RULES[first](member, value)
end

local kind = call('TYPE', own).ok
if kind == 'none' then return {findings, messages, '0'} end
if cursor == '' then
  for i = 6, #ARGV - 4 do
    local member = arg(i)
    if kind == 'set' then
      if call('SISMEMBER', own, member) == 1 then judge(member) end
    else
      local value = call(kind == 'zset' and 'ZSCORE' or 'HGET', own, member)
      if value then judge(member, value) end
    end
  end
  return {findings, messages, '0'}
end
local page = call(scans[kind], own, cursor, 'COUNT', count)
local step = kind == 'set' and 1 or 2
for i = 1, #page[2], step do judge(page[2][i], step == 2 and page[2][i + 1] or nil) end
return {findings, messages, page[1]}
