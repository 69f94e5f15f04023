--[[ An attempt, or its eval, failed: try again where that may help and tries are left, else end the job.

arg 1  job id
arg 2  fence of the claim
arg 3  '1' when another attempt may help
arg 4  terminal state when not
arg 5  finish_reason
arg 6  error (JSON)
arg 7  worked, ms
arg 8  waited, ms: added to the stage's time in queues

Returns {stage, queue, id, fence, priority} for the message of the next attempt, 'ended' or 'fenced'.
Writes  job:<id>, data:<id>, turns:<id>, events:<id>, index:*, leases, cancels, stalled, queued:*, queues, seq, on:*,
        assigned:*, heap:*, results, expiry, dead, counts
]]
local job = load(arg(1))
if job and job.last == 'fail:' .. arg(2) then
  if ended(job) then return 'ended' end
  return {job.stage, job.queue, job.id, tonumber(arg(2)), tonumber(job.prio)}
end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, arg(7), arg(8))
if job.cancel and arg(4) ~= 'cancelled' then
  conclude_cancelled(job, 'fail')
elseif arg(3) == '1' then
  local message = try_again_or_end(job, 'fail', true, arg(4), arg(5), arg(6))
  if message then
    call('ZREM', key('leases'), lease(job))
    return message
  end
else
  conclude(job, 'fail', arg(4), arg(5), {'error', arg(6)})
end
return 'ended'
