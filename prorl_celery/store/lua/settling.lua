--[[ Put behind the library, in front of every script that serves work which was accepted before.

A Redis that is full refuses a script at its first write, if that is one that can take memory. This one cannot, and lets
the script's own through: what was accepted ends, so that its memory comes free. New work is refused.
]]
call('DEL', key('full'))

