--[[ Give the lead of the sweep up, if this process has it.

arg 1  the process

Returns 1.
Writes  leader
]]
if call('GET', key('leader')) == arg(1) then call('DEL', key('leader')) end
return 1
