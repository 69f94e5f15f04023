--[[ Hold the jobs of a model, or of all, before their next model call. A pause of the same scope is replaced.

arg 1  model, or '' for all
arg 2  'finish' (calls in flight end by themselves) or 'abort' (they are given up)
arg 3  after how long it is over by itself, ms
arg 4  id of this operation: a replay changes nothing

Returns the policy's epoch.
Writes  policy:pauses, policy:epoch, policy:op:<id>
]]
local operation = key('policy', 'op', arg(4))
local done = call('GET', operation)
if done then return tonumber(done) end
local epoch = call('INCR', key('policy', 'epoch'))
local scope = arg(1) == '' and 'all' or 'model:' .. arg(1)
local pause = {mode = arg(2), epoch = epoch, since = int(now), till = int(now + tonumber(arg(3)))}
call('HSET', key('policy', 'pauses'), scope, cjson.encode(pause))
call('PUBLISH', key('policy'), epoch)
call('SET', operation, epoch, 'PX', 60000)
return epoch
