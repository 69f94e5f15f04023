--[[ Note that a backend has other weights than before: what its prefix cache holds is of no use to later calls.

arg 1  url
arg 2  id of this operation: a replay changes nothing

Returns the policy's epoch.
Writes  backends, policy:epoch, policy:op:<id>
]]
local operation = key('policy', 'op', arg(2))
local done = call('GET', operation)
if done then return tonumber(done) end
local epoch = call('INCR', key('policy', 'epoch'))
local text = call('HGET', key('backends'), arg(1))
if text then
  local record = cjson.decode(text)
  record.weights = epoch
  call('HSET', key('backends'), arg(1), cjson.encode(record))
end
call('PUBLISH', key('policy'), epoch)
call('SET', operation, epoch, 'PX', 60000)
return epoch
