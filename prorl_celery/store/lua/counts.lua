--[[ How many jobs are in each of some states, at one moment.

arg 1, 2, ...  state, or state:stage for a live one

Returns a number for each.
Writes  nothing
]]
local numbers = {}
for i = 1, #ARGV - 4 do numbers[i] = call('ZCARD', key('index', arg(i))) end
return numbers
