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

if tonumber(arg(3)) == 0 then
  call('SREM', key('draining'), member)
  call('DEL', key('processes', member))
  -- A score of 0 tells the next sweep, which takes the node out, that it need not ask itself whether it only just begins.
  if call('HEXISTS', key('nodes'), member) == 1 then call('ZADD', key('nodes', 'seen'), 0, member) end
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
