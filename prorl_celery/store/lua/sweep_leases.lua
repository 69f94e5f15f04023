--[[ Repair what dead processes left: jobs whose lease has lapsed, and cancels that no worker acted on.

arg 1  most jobs to look at
arg 2  how long a worker has to act on a cancel, ms

Returns {messages {stage, queue, id, fence, priority}, ids of jobs that ended}
Writes  what fail.lua writes, leases, swept
]]
local most, patience = tonumber(arg(1)), tonumber(arg(2))
local messages, ended = {}, {}

-- After a pause of Redis or of the sweep, leases have lapsed because nobody could renew them: give them one more.
local swept = call('GET', key('swept'))
if not swept or now - tonumber(swept) > 1000 then call('SET', key('swept'), NOW) end
if swept and now - tonumber(swept) > LEASE then
  for _, member in ipairs(call('ZRANGEBYSCORE', key('leases'), '-inf', NOW)) do
    call('ZADD', key('leases'), int(now + LEASE), member)
  end
end

local lapsed = call('ZRANGEBYSCORE', key('leases'), '-inf', NOW, 'LIMIT', 0, most)
local process_of, company = {}, {}
for _, member in ipairs(lapsed) do
  local id = string.match(member, '|(.*)$')
  local process = call('HGET', key('job', id), 'process') or id
  company[process] = (company[process] or 0) + 1
  process_of[id] = process
end
for _, member in ipairs(lapsed) do
  local fence, id = string.match(member, '^(%d+)|(.*)$')
  local job = load(id)
  if not holds(job, fence) then
    call('ZREM', key('leases'), member)
  else
    let_go(job)
    add_times(job, int(math.max(0, now - tonumber(job.since))), 0)
    call('HINCRBY', job.key, 'losses', 1)
    job.fence = job.fence + 1
    if job.cancel then
      conclude_cancelled(job, 'sweep')
      ended[#ended + 1] = id
    else
      -- A loss together with the whole process is charged only to a job that ran alone, or was lost twice before.
      local charged = company[process_of[id]] == 1 or tonumber(job.losses or 0) >= 2
      local message = try_again_or_end(job, 'sweep', charged, 'failed', 'error',
        error_json('lost_worker', job.stage, 'the process that held the job was lost', true))
      if message then messages[#messages + 1] = message else ended[#ended + 1] = id end
    end
  end
end
local ignored = call('ZRANGEBYSCORE', key('cancels'), '-inf', int(now - patience), 'LIMIT', 0, most)
for _, id in ipairs(ignored) do
  local job = load(id)
  if job and job.state == 'running' then
    let_go(job)
    add_times(job, int(math.max(0, now - tonumber(job.since))), 0)
    job.fence = job.fence + 1
    conclude_cancelled(job, 'sweep')
    ended[#ended + 1] = id
  else
    call('ZREM', key('cancels'), id)
  end
end
return {messages, ended}
