--[[ End a job by its claim's word. A job that should be cancelled ends as cancelled, whatever its worker says.

arg 1   job id
arg 2   fence of the claim
arg 3   terminal state
arg 4   finish_reason
arg 5   reward or ''
arg 6   resolved: '1', '0' or ''
arg 7   error (JSON) or ''
arg 8   artifacts and eval (blob) or ''
arg 9   worked, ms
arg 10  waited, ms: added to the stage's time in queues

Returns 'ok', 'cancelled' or 'fenced'.
Writes  job:<id>, data:<id>, turns:<id>, events:<id>, index:*, leases, cancels, stalled, on:*, assigned:*, heap:*,
        results, expiry, counts
]]
local job = load(arg(1))
if job and job.last == 'finish:' .. arg(2) then return job.state == arg(3) and 'ok' or 'cancelled' end
if not holds(job, arg(2)) then return 'fenced' end
add_times(job, arg(9), arg(10))
if job.cancel and arg(3) ~= 'cancelled' then
  conclude_cancelled(job, 'finish')
  return 'cancelled'
end
local more = {}
local function note(field, value)
  if value ~= '' then more[#more + 1] = field; more[#more + 1] = value end
end
note('reward', arg(5))
note('resolved', arg(6))
note('error', arg(7))
if arg(8) ~= '' then
  call('HSET', key('data', job.id), 'summary', arg(8))
  call('HDEL', key('data', job.id), 'rollout')
end
conclude(job, 'finish', arg(3), arg(4), more)
return 'ok'
