--[[ Send a claimed job back to init, since what was begun of it cannot be gone on with.

arg 1  job id
arg 2  fence of the claim
arg 3  worked, ms
arg 4  waited, ms: added to the stage's time in queues
arg 5  error (JSON) that stands in the way, or '' where that lies in the job's nature
arg 6  how often such an error is not charged
arg 7  '1' when the node's keeper was lost, which is a loss like that of a process, else ''

Returns {stage, queue, id, fence, priority} for the message, 'ended', 'fenced', or 'cancelled' (ended in this call).
Writes  what fail.lua writes
]]
local job = load(arg(1))
if job and job.last == 'restart:' .. arg(2) then
  if ended(job) then return 'ended' end
  return {job.stage, job.queue, job.id, tonumber(arg(2)), tonumber(job.prio)}
end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, arg(3), arg(4))
if job.cancel then
  conclude_cancelled(job, 'cancel')
  return 'cancelled'
end
local claimed = lease(job)
local charged
if arg(7) == '1' then
  -- Whose fault that was nobody knows: the first times it is nobody's, and then the job runs where few others do.
  charged = count_loss(job) >= SUSPECT
else
  charged = arg(5) ~= '' and call('HINCRBY', job.key, 'restarts', 1) > tonumber(arg(6))
end
local message
if charged then
  local gone = arg(7) ~= '1' or job.bound == '1'
  message = try_again_or_end(job, 'restart', true, 'failed', 'error', arg(5), gone)
elseif arg(7) == '1' and job.stage == 'eval' and job.bound ~= '1' then
  message = repeat_eval(job, 'restart')
else
  message = start_over(job, 'restart', false)
end
call('ZREM', key('leases'), claimed)
return message or 'ended'
