--[[ Note that a stage process of a node is alive, or that it is no more.

arg 1  "<node> <boot>"
arg 2  the process's id
arg 3  record (JSON), or '' when it is no more
arg 4  how long that is believed, ms

Returns 1 when its node should drain, else 0.
Writes  processes:<node> <boot>
]]
local processes = key('processes', arg(1))
if arg(3) == '' then
  call('HDEL', processes, arg(2))
else
  call('HSET', processes, arg(2), int(now + tonumber(arg(4))) .. ' ' .. arg(3))
  call('PEXPIRE', processes, arg(4))
end
return call('SISMEMBER', key('draining'), arg(1))
