--[[ Store what a stage returned and queue the next stage. A job that should be cancelled ends here instead.

arg 1  job id
arg 2  fence of the claim
arg 3  next stage
arg 4  queue of the next stage; a suspect gets the one of its kind in its stead
arg 5  the output (blob)
arg 6  worked, ms
arg 7  waited, ms: added to the stage's time in queues
arg 8  node whose queue that is, or ''
arg 9  the sandboxes that live on, with blanks between, or ''
arg 10 '1' when the next stage needs what was done in them, else ''

Returns {stage, queue, id, fence, priority} for the message, 'fenced', or 'cancelled' (ended in this call).
Writes  job:<id>, data:<id>, events:<id>, index:*, leases, stalled, queued:*, queues, seq, on:*; what ends a job when it is cancelled
]]
local job = load(arg(1))
if job and job.last == 'commit:' .. arg(2) then
  return {arg(3), job.queue, job.id, tonumber(arg(2)), tonumber(job.prio)}
end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, arg(6), arg(7))
if job.cancel then
  conclude_cancelled(job, 'cancel')
  return 'cancelled'
end
call('HSET', key('data', job.id), job.stage, arg(5))
call('HDEL', job.key, 'sandboxes', 'bound', 'going_on', 'spent')
if arg(9) ~= '' then call('HSET', job.key, 'sandboxes', arg(9), 'bound', arg(10)) end
let_go(job)
if job.lost and string.match(job.lost, '^%a+') == job.stage then forgive(job) end
return requeue(job, 'commit', arg(3), queue_of(job, arg(3), home(arg(4))), arg(8))
