--[[ Repair what dead processes left: jobs whose lease has lapsed, and cancels that no worker acted on.

arg 1  most jobs to look at
arg 2  how long a worker has to act on a cancel, ms
arg 3  time between sweeps, ms

Returns {messages {stage, queue, id, fence, priority}, ids of jobs that ended}
Writes  what fail.lua writes, leases, nodes:seen, swept, lost:<process>
]]
local most, patience, every = tonumber(arg(1)), tonumber(arg(2)), tonumber(arg(3))
local messages, over = {}, {}

-- While Redis was away nobody could renew anything, nor sweep: every lease, and the word of every node that had not
-- lapsed before, gets one more term. A lease is renewed so often that it cannot lapse in a gap of less than half its time.
-- Where sweeps are rarer than that, their own gap is no outage: no lease would ever lapse.
-- Not the leases of processes that are known to be dead (0).
local swept = call('GET', key('swept'))
if not swept or now - tonumber(swept) > math.min(1000, LEASE / 8) then call('SET', key('swept'), NOW) end
if swept and now - tonumber(swept) > math.max(LEASE / 2, 2 * every) then
  for _, member in ipairs(call('ZRANGEBYSCORE', key('leases'), '(0', '+inf')) do
    call('ZADD', key('leases'), int(now + LEASE), member)
  end
  for _, member in ipairs(call('ZRANGEBYSCORE', key('nodes', 'seen'), swept, NOW)) do
    call('ZADD', key('nodes', 'seen'), int(now + LEASE), member)
  end
end

-- How many jobs ran in the process of this one, itself included, whether or not their leases have lapsed as well.
local running, companies = {}, {}
local function in_company(job)
  local node, process = job.on or '', job.process or job.id
  if not running[node] then
    running[node] = {}
    for _, one in ipairs(running_on(node)) do
      running[node][one[2]] = (running[node][one[2]] or 0) + 1
    end
  end
  companies[process] = companies[process] or company(process, running[node][process] or 1)
  return companies[process]
end

-- What a claim had worked when its lease was last renewed, and waited, as its process told then. Of one that is known to
-- be dead, until now.
local function times(job, lapsed)
  local heard = lapsed > 0 and math.min(now, lapsed - LEASE) or now
  local waited = tonumber(call('HGET', job.key, 'waited') or 0)
  return int(math.max(0, heard - tonumber(job.since) - waited)), int(waited)
end

local function lose(job, lapsed)
  local worked, waited = times(job, lapsed)
  local ran = in_company(job)
  let_go(job)
  add_times(job, worked, waited)
  tally('lost', job.stage)
  tell(job, 'lost ' .. job.stage)
  job.fence = job.fence + 1
  if job.cancel then return conclude_cancelled(job, 'sweep') end
  local before = count_loss(job)
  if job.stage == 'rollout' then call('HINCRBY', job.key, 'spent', worked) end
  -- A loss together with the whole process is charged only to a job that ran alone and must start over, or was lost
  -- twice before without progress.
  local charged = (ran == 1 and not can_go_on(job)) or before >= SUSPECT
  local often = job.losses == 1 and '' or ', ' .. int(job.losses) .. ' times without progress'
  return try_again_or_end(job, 'sweep', charged, 'failed', 'error',
    error_json('lost_worker', job.stage, 'the process that held the job was lost' .. often, true))
end

local lapsed = call('ZRANGEBYSCORE', key('leases'), '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #lapsed, 2 do
  local fence, id = string.match(lapsed[i], '^(%d+)|(.*)$')
  local job = load(id)
  if not holds(job, fence) then
    call('ZREM', key('leases'), lapsed[i])
  else
    local message = lose(job, tonumber(lapsed[i + 1]))
    if message then messages[#messages + 1] = message else over[#over + 1] = id end
  end
end
local ignored = call('ZRANGEBYSCORE', key('cancels'), '-inf', int(now - patience), 'LIMIT', 0, most)
for _, id in ipairs(ignored) do
  local job = load(id)
  if job and job.state == 'running' then
    let_go(job)
    add_times(job, times(job, 0))
    job.fence = job.fence + 1
    conclude_cancelled(job, 'sweep')
    over[#over + 1] = id
  else
    call('ZREM', key('cancels'), id)
  end
end
return {messages, over}
