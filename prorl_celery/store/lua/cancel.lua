--[[ Cancel a job: one that waits ends at once, one that runs is told.

arg 1  job id
arg 2  id of this operation: a replay answers as the first run did

Returns 'ended' (by this call), 'requested', 'already_ended' or 'unknown'.
Writes  for a waiting job what ends it; for a running one job:<id>, cancels, events:<id>
]]
local job = load(arg(1))
if not job then
  return call('EXISTS', key('job', arg(1))) == 1 and 'already_ended' or 'unknown'
end
if job.state == 'running' then
  if not job.cancel then
    call('HSET', job.key, 'cancel', NOW)
    call('ZADD', key('cancels'), NOW, job.id)
    tell(job, 'cancel_requested')
  end
  call('PUBLISH', key('cancel'), job.id)
  return 'requested'
end
if ended(job) then return job.op == arg(2) and 'ended' or 'already_ended' end
-- The message that waits names the fence of now: raise it, so that nothing can claim the job.
job.fence = job.fence + 1
conclude_cancelled(job, 'cancel')
call('HSET', job.key, 'op', arg(2))
call('PUBLISH', key('cancel'), job.id)
return 'ended'
