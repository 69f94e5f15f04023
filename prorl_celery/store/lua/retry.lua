--[[ Give a job that failed or timed out a new life: from init, with all its attempts; its result is withdrawn.

arg 1  job id
arg 2  id of this operation: a replay answers as the first run did

Returns {stage, queue, id, fence, priority} for the message, 'unknown', 'gone' (its result has expired), 'not_failed'
        or 'of_batch' (it is a sample of a batch's group).
Writes  job:<id>, data:<id>, turns:<id>, events:<id>, batch:<batch>, index:*, dead, expiry, results, queued:*, queues, seq
]]
local job = load(arg(1))
if not job then return call('EXISTS', key('job', arg(1))) == 1 and 'gone' or 'unknown' end
local function message() return {job.stage, job.queue, job.id, job.fence, tonumber(job.prio)} end
if job.last == 'retry:' .. arg(2) then return message() end
if job.state ~= 'failed' and job.state ~= 'timed_out' then return 'not_failed' end
-- A batch has counted it, and draws its samples anew itself.
if call('HEXISTS', job.key, 'prompt') == 1 then return 'of_batch' end
local data, events = key('data', job.id), key('events', job.id)
if call('HEXISTS', data, 'spec') == 0 then return 'gone' end
call('HINCRBY', job.key, 'retries', 1)
for _, kept in ipairs({job.key, data, events}) do call('PERSIST', kept) end
if job.batch then call('PERSIST', key('batch', job.batch)) end
call('ZREM', key('dead'), job.id)
call('ZREM', key('expiry'), job.id)
local entry = call('HGET', job.key, 'entry')
if entry then call('XDEL', key('results'), entry) end
call('HDEL', job.key, 'entry', 'reason', 'reward', 'resolved', 'error', 'finished', 'cancel', 'nturns', 'turn_bytes',
  'backend', 'held', 'node', 'evals')
call('HDEL', data, 'init', 'rollout', 'summary')
call('DEL', key('turns', job.id))
call('HSET', job.key, 'attempt', '1', 'log', '0', 'rf', '0')
-- Of the first life's events only the numbers go on.
call('LTRIM', events, -1, -1)
tell(job, 'retried')
if call('LLEN', events) > 1 then call('LPOP', events) end
-- A message of the first life that is still on its way must claim nothing.
job.fence = job.fence + 1
requeue(job, 'retry', 'init', 'init', '')
call('HSET', job.key, 'last', 'retry:' .. arg(2))
return message()
