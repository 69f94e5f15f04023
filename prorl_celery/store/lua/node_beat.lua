--[[ Note that a node is alive.

arg 1  "<node> <boot>"
arg 2  record (JSON)
arg 3  how long that is believed, ms; 0 takes the node out

Returns 1.
Writes  nodes, nodes:seen
]]
if tonumber(arg(3)) == 0 then
  call('HDEL', key('nodes'), arg(1))
  call('ZREM', key('nodes', 'seen'), arg(1))
else
  call('HSET', key('nodes'), arg(1), arg(2))
  call('ZADD', key('nodes', 'seen'), int(now + tonumber(arg(3))), arg(1))
end
return 1
