--[[ Be, or stay, the one process that sweeps.

arg 1  the process
arg 2  how long it leads without asking again, ms

Returns 1 when it leads, else 0.
Writes  leader
]]
local leader = call('GET', key('leader'))
if leader and leader ~= arg(1) then return 0 end
call('SET', key('leader'), arg(1), 'PX', arg(2))
return 1
