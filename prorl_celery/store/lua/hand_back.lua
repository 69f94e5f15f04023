--[[ Give a claimed job back to its queue, uncharged: the same stage under a new fence.

arg 1  job id
arg 2  fence of the claim
arg 3  waited, ms: added to the stage's time in queues

Returns {stage, queue, id, fence, priority} for the message, 'fenced', or 'cancelled' (ended in this call).
Writes  job:<id>, index:*, leases, queued:*, queues, seq, on:*, assigned:*, heap:*; what ends a job when it is cancelled
]]
local job = load(arg(1))
if job and job.last == 'hand_back:' .. arg(2) then
  return {job.stage, job.queue, job.id, tonumber(arg(2)), tonumber(job.prio)}
end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, 0, arg(3))
if job.cancel then
  conclude_cancelled(job, 'cancel')
  return 'cancelled'
end
let_go(job)
local shared = job.queue == job.stage
return requeue(job, 'hand_back', job.stage, job.queue, shared and '' or job.on or '')
