--[[ Put behind the library, in front of the scripts that check (`check_*`).

Such a script looks at one page of things in one step, so that it never sees half of a change. Its first argument is
'look', which writes nothing, or 'mend', which puts right what it finds in the same step.
]]
local MENDING = arg(1) == 'mend'
local findings, messages = {}, {}
local about = '' -- what is looked at: a second look asks for it by this

-- Note a finding: its kind, its subject, what is wrong in words. `mark` is another when the subject has changed since.
local function found(kind, subject, text, mark, mend)
  findings[#findings + 1] = {kind, subject, text, mark, about}
  if not MENDING then return end
  local message = mend()
  if type(message) == 'table' then messages[#messages + 1] = message end
end

-- Take a job from whoever has it, as the sweep does.
local function take(job)
  job.queue = job.queue or job.stage
  if job.state == 'running' then let_go(job) else dequeue(job) end
  job.fence = job.fence + 1
end

-- Give back the slot of a backend that a job holds without running.
local function give_back(job)
  if job.backend then release_backend(job) else call('HDEL', job.key, 'held') end
end

local function end_as_lost(job, what)
  take(job)
  conclude(job, 'check', 'failed', 'error', {'error', error_json('internal', job.stage, what, false)})
end

-- Send a job back to init, unless it was to end.
local function begin_again(job)
  take(job)
  if not job.cancel then return start_over(job, 'check', false) end
  conclude_cancelled(job, 'check')
end

-- Jobs that were started because of what was mended are told with the others.
local function tell_born()
  for i = #born, 1, -1 do messages[#messages + 1] = table.remove(born, i) end
end

-- What a live job needs to be a sample of a batch's group. `told` are the record's prompt and parked.
local function check_sample(job, told, note)
  local members = key('members', told[1], job.batch)
  if call('SISMEMBER', members, job.id) == 0 then
    note('not-member', 'is a sample of ' .. job.batch .. ':' .. told[1] .. ', which does not count on it', function(job)
      call('SADD', members, job.id)
    end)
  end
  if call('HEXISTS', key('dapo_specs', job.batch), told[1]) == 0 then
    note('no-request', 'has lost the request of its prompt', function(job)
      end_as_lost(job, 'its request was lost from the store')
    end)
  end
  if not told[2] or job.state ~= 'queued' then return end
  local bar = barred(job)
  if bar ~= 'parked' and bar ~= 'revoked' then
    note('stray-parked', 'waits for an adoption, and its batch does not wait for one', function(job)
      call('HDEL', job.key, 'parked')
      enqueue(job, job.queue or 'init')
      return {job.stage, job.queue, job.id, job.fence, tonumber(job.prio)}
    end)
  end
end
