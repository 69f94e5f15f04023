--[[ Give a claimed job back, uncharged, under a new fence: init to its queue, eval to where it can be repeated. A rollout
goes on in another process where its sandboxes are there, or it had none; else it starts over from init.

arg 1  job id
arg 2  fence of the claim
arg 3  worked, ms
arg 4  waited, ms: added to the stage's time in queues
arg 5  '1' when its sandboxes are known to be gone, else ''

Returns {stage, queue, id, fence, priority} for the message, 'fenced', or 'cancelled' (ended in this call).
Writes  job:<id>, data:<id>, events:<id>, index:*, leases, stalled, queued:*, queues, seq, on:*, assigned:*, heap:*,
        counts; what ends a job when it is cancelled
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
local gone = arg(5) == '1' and (job.stage == 'rollout' or job.bound == '1')
tell(job, 'handed_back ' .. job.stage)
local message
if job.stage == 'init' then
  message = requeue(job, 'hand_back', 'init', queue_of(job, 'init'), '')
elseif gone then
  message = start_over(job, 'hand_back', false)
elseif job.stage == 'eval' then
  message = repeat_eval(job, 'hand_back')
elseif can_go_on(job) then
  call('HINCRBY', job.key, 'spent', arg(3))
  message = go_on(job, 'hand_back')
else
  message = start_over(job, 'hand_back', false)
end
call('ZREM', key('leases'), claimed)
return message
