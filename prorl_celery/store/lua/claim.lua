--[[ Claim a job for a stage: raise its fence, take the lease, give its data.

arg 1  job id
arg 2  stage of the message
arg 3  fence of the message
arg 4  id of this delivery: a replay answers as the first run did
arg 5  node that claims
arg 6  process that claims

Returns {fence, attempt, losses, queue, sandboxes, batch, group, spec, init, rollout, going_on, spent, sample} (nil or false
        where there is none), or false when the message is of the past.
Writes  job:<id>, events:<id>, leases, index:*, queued:*, passed, on:<node>
]]
local id, stage, fence, op, node, process = arg(1), arg(2), tonumber(arg(3)), arg(4), arg(5), arg(6)
local job = load(id)
if not job then return false end

-- The delivery's id moves the new fence on by up to 4096. A Redis that has lost its last seconds (a failover, a file not
-- yet flushed) has the job queued that was claimed in them; the two claims must not hold the same fence.
local claimed = fence + 1 + (tonumber(string.sub(op, 1, 3), 16) or 0)
local replay = job.state == 'running' and job.fence == claimed and job.op == op
if not replay then
  if job.state ~= 'queued' or job.stage ~= stage or job.fence ~= fence then return false end
  local bar = job.batch and barred(job)
  if bar == 'revoked' then
    job.fence = fence + 1
    conclude_revoked(job, 'claim')
    return false
  end
  local seq = dequeue(job)
  if seq then
    local lane = job.level .. ':' .. job.queue
    local passed = call('HGET', key('passed'), lane)
    if not passed or tonumber(seq) > tonumber(passed) then call('HSET', key('passed'), lane, seq) end
  end
  if bar == 'parked' then
    call('HSET', job.key, 'parked', '1')
    return false
  end
  job.fence = claimed
  call('HSET', job.key, 'state', 'running', 'fence', int(job.fence), 'op', op, 'node', node, 'process', process,
    'since', NOW, 'active', NOW)
  call('HDEL', job.key, 'waited')
  if stage == 'rollout' then
    -- The log of a rollout that goes on is this claim's from now on.
    if job.going_on and job.log == job.rf then call('HSET', job.key, 'log', int(job.fence)) end
    call('HSET', job.key, 'rf', int(job.fence))
  end
  call('HINCRBY', job.key, 'q_' .. stage, int(math.max(0, now - tonumber(job.since))))
  move(job, 'running', stage)
  place(job, node)
  call('ZADD', key('leases'), int(now + LEASE), lease(job))
  tell(job, 'running ' .. stage)
end
local more = call('HMGET', job.key, 'group', 'spent', 'prompt', 'sample')
local data = call('HMGET', key('data', id), 'spec', 'init', 'rollout')
-- All samples of a batch's prompt have one request between them.
local spec = more[3] and call('HGET', key('dapo_specs', job.batch), more[3]) or data[1]
return {job.fence, tonumber(job.attempt), tonumber(job.losses or 0), job.queue, job.sandboxes, job.batch, more[1],
  spec, data[2], data[3], job.going_on, tonumber(more[2] or 0), more[4]}
