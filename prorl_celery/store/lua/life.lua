--[[ Put between `lib.lua` and every script: how a job moves through its life. ]]

-- Losses without progress between them after which a job runs in a process of its own.
local SUSPECT = 2

-- Let go of a claim: no lease, no node, no backend, no wish to cancel.
local function let_go(job)
  call('ZREM', key('leases'), lease(job))
  if job.cancel then call('ZREM', key('cancels'), job.id) end
  release_backend(job)
end

-- The job is seen to move.
local function unstall(job)
  if not job.stall then return end
  call('HDEL', job.key, 'stall')
  call('ZREM', key('stalled'), job.id)
end

-- The job has come further than where it was last lost.
local function forgive(job)
  if not job.lost then return end
  call('HDEL', job.key, 'losses', 'lost')
  job.losses, job.lost = false, false
end

-- Note that what held the job was lost; how often that had happened before since it last came further.
local function count_loss(job)
  local before = tonumber(job.losses or 0)
  job.losses, job.lost = before + 1, job.stage .. ':' .. int(logged(job))
  call('HSET', job.key, 'losses', int(job.losses), 'lost', job.lost)
  call('HINCRBY', job.key, 'lost_total', 1)
  return before
end

-- A stage's queue as this job may use it: a suspect's is one that a process of a single slot reads. `home` is the
-- "<node>.<boot>" that it must be on, or nil.
local function queue_of(job, stage, home)
  local name = tonumber(job.losses or 0) >= SUSPECT and 'solo' or stage
  return home and name .. '.' .. home or name
end

-- The "<node>.<boot>" whose queue the job is in, or was claimed from; nil for a queue that all nodes share.
local function home(queue) return string.match(queue, '^%a+%.(.+)$') end

-- Put a job that runs, or waits in a queue, into (another) queue. Returns what a message needs.
local function requeue(job, step, stage, queue, node)
  release_backend(job)
  call('HSET', job.key, 'state', 'queued', 'stage', stage, 'since', NOW, 'active', NOW, 'fence', int(job.fence),
    'last', step .. ':' .. int(job.fence))
  unstall(job)
  move(job, 'queued', stage)
  place(job, node)
  enqueue(job, queue)
  tell(job, 'queued ' .. stage)
  return {stage, queue, job.id, job.fence, tonumber(job.prio)}
end

-- Send a job back to init; `charged` when that is a new attempt.
local function start_over(job, step, charged)
  if charged then call('HINCRBY', job.key, 'attempt', 1) end
  if job.stage ~= 'init' then tally('started_over') end
  call('HSET', job.key, 'rf', '0')
  call('HDEL', job.key, 'sandboxes', 'bound', 'going_on', 'spent', 'evals')
  call('HDEL', key('data', job.id), 'init', 'rollout')
  return requeue(job, step, 'init', queue_of(job, 'init'), '')
end

-- Whether a rollout that no process holds any more can go on where it stopped: what it did in its sandboxes is there,
-- or it had none.
local function can_go_on(job)
  if job.stage ~= 'rollout' then return false end
  return not job.sandboxes or job.bound == '1' and reader(job.queue) == 'alive'
end

-- Queue a rollout for another process, which goes on after the last turn of its log.
local function go_on(job, step)
  call('HSET', job.key, 'going_on', '1')
  tally('went_on')
  local there = reader(job.queue) == 'alive' and home(job.queue) or nil
  return requeue(job, step, 'rollout', queue_of(job, 'rollout', there), there and job.on or '')
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

-- End the job: the only way into a terminal state. `more` are further fields of the record and their values; `dead`
-- when another attempt might have helped, but none was left.
local function conclude(job, step, state, reason, more, dead)
  let_go(job)
  unstall(job)
  if job.state == 'queued' then dequeue(job) end
  place(job, '')
  local entry = {'job', job.id}
  if job.batch then entry[3], entry[4] = 'batch', job.batch end
  if job.tags then entry[#entry + 1] = 'tags'; entry[#entry + 1] = job.tags end
  call('HSET', job.key, 'state', state, 'reason', reason, 'finished', NOW, 'since', NOW, 'active', NOW,
    'fence', int(job.fence), 'last', step .. ':' .. int(job.fence),
    'entry', call('XADD', key('results'), '*', unpack(entry)), unpack(more))
  cut_results()
  call('HDEL', job.key, 'sandboxes', 'bound', 'op', 'process', 'going_on', 'spent', 'open', 'calls', 'losses', 'lost',
    'restarts', 'waited')
  call('HDEL', key('data', job.id), 'init')
  if job.log ~= job.rf then
    call('DEL', key('turns', job.id))
    call('HDEL', job.key, 'nturns', 'turn_bytes')
  end
  move(job, state, job.stage)
  if state == 'failed' or state == 'timed_out' then
    for i = 1, #more, 2 do
      if more[i] == 'error' then tally('failed', cjson.decode(more[i + 1]).kind) end
    end
  end
  if dead and state == 'failed' then call('ZADD', key('dead'), NOW, job.id) end
  tell(job, 'ended ' .. state)
  call('ZADD', key('expiry'), int(now + RESULT_TTL), job.id)
  call('PEXPIRE', key('data', job.id), RESULT_TTL)
  call('PEXPIRE', key('events', job.id), RESULT_TTL)
  if job.log ~= '0' then call('PEXPIRE', key('turns', job.id), RESULT_TTL) end
  call('PEXPIRE', job.key, ID_TTL)
  if job.batch then call('PEXPIRE', key('batch', job.batch), ID_TTL) end
  call('PUBLISH', key('done'), job.id)
  if job.batch then settle(job, state) end
end

-- End a job as cancelled.
local function conclude_cancelled(job, step)
  conclude(job, step, 'cancelled', 'cancelled',
    {'error', error_json('cancelled', job.stage, 'the job was cancelled', false)})
end

-- End a job that its batch does not want any more. Its node hears of it where it has sandboxes that nobody holds.
local function conclude_revoked(job, step)
  if job.sandboxes then call('PUBLISH', key('cancel'), job.id) end
  conclude(job, step, 'cancelled', 'cancelled',
    {'error', error_json('cancelled', job.stage, 'its batch has no more use for the job', false)})
end

-- Whether the job is in eval, and what that needs of the stages before is there: then it can be repeated alone.
local function can_repeat(job) return job.stage == 'eval' and not (job.bound == '1' and reader(job.queue) == 'gone') end

-- Queue an eval anew: where the sandboxes are that it needs, over from init when they are gone, anywhere when it needs
-- none. What was started ahead for it may have been used by now, and is of no more use. Not charged.
local function repeat_eval(job, step)
  if not can_repeat(job) then return start_over(job, step, false) end
  if job.bound == '1' then
    return requeue(job, step, 'eval', queue_of(job, 'eval', home(job.queue)), job.on or '')
  end
  call('HDEL', job.key, 'sandboxes', 'bound')
  return requeue(job, step, 'eval', queue_of(job, 'eval'), '')
end

-- What to do with a job whose stage failed and may do better: a message's parts, or nil when it has ended. Not
-- `charged` means that the job was not at fault. Eval is repeated alone while what it needs is there, unless it is known
-- to be `gone`; that is no new attempt, but evals of an attempt are as many as attempts of the job may be.
local function try_again_or_end(job, step, charged, state, reason, err, gone)
  local alone = can_repeat(job) and not gone
  if charged then
    local kind = cjson.decode(err).kind
    local tries = alone and call('HINCRBY', job.key, 'evals', 1) or tonumber(job.attempt)
    if tries >= tonumber(job.max) then
      conclude(job, step, state, reason, {'error', err}, true)
      return nil
    end
    tally('retries', kind, job.stage)
    tell(job, 'failed ' .. job.stage .. ' ' .. kind)
  elseif can_go_on(job) then
    return go_on(job, step)
  end
  if alone then return repeat_eval(job, step) end
  return start_over(job, step, charged)
end
