--[[ Give a claimed job back, uncharged, under a new fence: init and eval to their queue, rollout to init.

arg 1  job id
arg 2  fence of the claim
arg 3  worked, ms
arg 4  waited, ms: added to the stage's time in queues

Returns {stage, queue, id, fence, priority} for the message, 'fenced', or 'cancelled' (ended in this call).
Writes  job:<id>, index:*, leases, queued:*, queues, seq, on:*, assigned:*, heap:*; what ends a job when it is cancelled
]]
local job = load(arg(1))
if job and job.last == 'hand_back:' .. arg(2) then
  return {job.stage, job.queue, job.id, tonumber(arg(2)), tonumber(job.prio)}
end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, arg(3), arg(4))
if job.cancel then
  conclude_cancelled(job, 'cancel')
  return 'cancelled'
end
if job.stage == 'rollout' then
  local message = start_over(job, 'hand_back', false)
  call('ZREM', key('leases'), lease(job))
  return message
end
let_go(job)
local shared = job.queue == job.stage
return requeue(job, 'hand_back', job.stage, job.queue, shared and '' or job.on or '')
