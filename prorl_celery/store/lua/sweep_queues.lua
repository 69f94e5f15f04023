--[[ Find jobs whose message was lost, and jobs that wait for a node that is gone.

A message is lost when it was published over arg 2 ago and its lane (queue and level) has passed it by over arg 2 ago, or
the broker's list has been found empty for a while. Of each lane `passed` remembers: `<lane>` the highest order of
publishing claimed, `<lane>:snap` what that was at `<lane>:at`, `<lane>:old` a snapshot over arg 2 old, `<lane>:empty` when
the list was found empty.

arg 1  most jobs to look at in one lane
arg 2  how long before a message counts as lost, ms
arg 3  separator between a broker list's queue and level (none for level 0)
arg 4  key of the broker's bindings, where each queue that was ever declared has a member

Returns messages: {stage, queue, id, fence, priority}
Writes  queued:*, passed, queues, seq, job:<id>, events:<id>, counts; for a node that is gone what sends a job back to init, and its broker lists and its binding go
]]
local most, patience, separator, bindings = tonumber(arg(1)), tonumber(arg(2)), arg(3), arg(4)
local messages = {}
local passed = key('passed')
-- A worker that has just emptied the list may be about to claim what it took.
local EMPTY_FOR = math.min(patience, 1000)

local function broker_list(queue, level)
  return level == '0' and queue or queue .. separator .. level
end

local function old_enough(id)
  local published = call('HGET', key('job', id), 'published')
  return not published or tonumber(published) <= now - patience
end

-- Whether the one node that reads a queue has said itself that it stops; of others it may be that they only just begin.
local function has_left(queue)
  local node, boot = string.match(queue, '^%a+%.(.*)%.([^.]*)$')
  return call('ZSCORE', key('nodes', 'seen'), node .. ' ' .. boot) == '0'
end

local function abandon(queue, level)
  local waiting = call('ZRANGE', key('queued', level, queue), 0, most - 1)
  local left = has_left(queue)
  for _, id in ipairs(waiting) do
    if left or old_enough(id) then
      local job = load(id)
      if not job or job.state ~= 'queued' or job.queue ~= queue then
        call('ZREM', key('queued', level, queue), id)
      else
        dequeue(job)
        job.fence = job.fence + 1
        -- No fault of its own. Its sandboxes went with the node, so what needs them starts over.
        local again = start_over
        if job.stage == 'eval' then again = repeat_eval elseif job.going_on and can_go_on(job) then again = go_on end
        messages[#messages + 1] = again(job, 'sweep', false)
      end
    end
  end
  return call('ZCARD', key('queued', level, queue)) == 0
end

local function find_lost(queue, level)
  local queued, lane = key('queued', level, queue), level .. ':' .. queue
  if call('EXISTS', queued) == 0 then
    call('HDEL', passed, lane .. ':snap', lane .. ':at', lane .. ':old', lane .. ':empty', lane)
    return
  end
  local known = call('HMGET', passed, lane, lane .. ':snap', lane .. ':at', lane .. ':old', lane .. ':empty')
  local claimed, snap, at, old, empty = known[1], known[2], known[3], known[4], known[5]
  if not at or now - tonumber(at) >= patience then
    old, snap = snap or '0', claimed or '0'
    call('HSET', passed, lane .. ':old', old, lane .. ':snap', snap, lane .. ':at', NOW)
  end
  local suspects
  if call('LLEN', broker_list(queue, level)) == 0 then
    if not empty then
      call('HSET', passed, lane .. ':empty', NOW)
      empty = NOW
    end
    if tonumber(empty) <= now - EMPTY_FOR then suspects = call('ZRANGE', queued, 0, most - 1) end
  elseif empty then
    call('HDEL', passed, lane .. ':empty')
  end
  suspects = suspects or call('ZRANGEBYSCORE', queued, '-inf', '(' .. (old or '0'), 'LIMIT', 0, most)
  for _, id in ipairs(suspects) do
    if old_enough(id) then
      local job = load(id)
      if not job or job.state ~= 'queued' or job.queue ~= queue then
        call('ZREM', queued, id)
      else
        enqueue(job, queue)
        messages[#messages + 1] = {job.stage, queue, id, job.fence, tonumber(job.prio)}
      end
    end
  end
end

for _, queue in ipairs(call('SMEMBERS', key('queues'))) do
  local who = reader(queue)
  local drained = true
  for _, level in ipairs({'0', '3', '6', '9'}) do
    if who == 'gone' then
      drained = abandon(queue, level) and drained
    else
      find_lost(queue, level)
    end
  end
  if who == 'gone' and drained then
    call('SREM', key('queues'), queue)
    call('SREM', bindings, queue .. separator .. separator .. queue)
    for _, level in ipairs({'0', '3', '6', '9'}) do
      call('DEL', broker_list(queue, level))
      local lane = level .. ':' .. queue
      call('HDEL', passed, lane, lane .. ':snap', lane .. ':at', lane .. ':old', lane .. ':empty')
    end
  end
end
-- Queues that were declared and never published to are in no list but the broker's.
for _, member in ipairs(call('SMEMBERS', bindings)) do
  local queue = string.match(member, separator .. '([^' .. separator .. ']*)$')
  if queue and call('SISMEMBER', key('queues'), queue) == 0 and reader(queue) == 'gone' then
    call('SREM', bindings, member)
  end
end
return messages
