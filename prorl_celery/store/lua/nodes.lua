--[[ The nodes that are alive.

Returns their records (JSON).
Writes  nothing
]]
local alive = call('ZRANGEBYSCORE', key('nodes', 'seen'), '(' .. NOW, '+inf')
if #alive == 0 then return {} end
return call('HMGET', key('nodes'), unpack(alive))
