--[[ Give a claimed job back, uncharged, under a new fence: init to its queue, rollout to init, eval to where it can be.

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
local claimed = lease(job)
local message
if job.stage == 'rollout' then
  message = start_over(job, 'hand_back', false)
elseif job.stage == 'eval' then
  message = repeat_eval(job, 'hand_back', false)
else
  message = requeue(job, 'hand_back', 'init', 'init', '')
end
call('ZREM', key('leases'), claimed)
return message
