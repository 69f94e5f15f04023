--[[ Note that a node is alive, or that it has stopped.

arg 1  "<node> <boot>"
arg 2  record (JSON)
arg 3  how long that is believed, ms; 0: the node has stopped, and no process of it is left

Returns {1 when it should drain, jobs that wait for a process of their own that this node may run, records of its stage
processes (JSON) ...}
Writes  nodes, nodes:seen; draining and processes:<node> <boot> of a node that has stopped
]]
local member = arg(1)
local home = string.gsub(member, ' ([^ ]*)$', '.%1')

local function waiting(queue)
  local jobs = 0
  for _, level in ipairs({'0', '3', '6', '9'}) do jobs = jobs + call('ZCARD', key('queued', level, queue)) end
  return jobs
end

-- Whether a job waits in a queue that only this node reads.
local function is_waited_for()
  for _, queue in ipairs(call('SMEMBERS', key('queues'))) do
    if string.sub(queue, -#home - 1) == '.' .. home and waiting(queue) > 0 then return true end
  end
  return false
end

if tonumber(arg(3)) == 0 then
  call('SREM', key('draining'), member)
  call('DEL', key('processes', member))
  if call('HEXISTS', key('nodes'), member) == 1 and is_waited_for() then
    -- A score of 0 tells the sweep that it need not ask itself whether the node might still be at work.
    call('ZADD', key('nodes', 'seen'), 0, member)
  else
    call('HDEL', key('nodes'), member)
    call('ZREM', key('nodes', 'seen'), member)
  end
  return {0, 0}
end

call('HSET', key('nodes'), member, arg(2))
call('ZADD', key('nodes', 'seen'), int(now + tonumber(arg(3))), member)
local draining = call('SISMEMBER', key('draining'), member)
local alone = waiting('solo.' .. home)
if draining == 0 then alone = alone + waiting('solo') end
local told = {draining, alone}
for _, value in ipairs(call('HVALS', key('processes', member))) do
  told[#told + 1] = string.match(value, '^%d+ (.*)$')
end
return told
