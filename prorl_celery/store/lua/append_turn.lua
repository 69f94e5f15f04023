--[[ Append a turn to the job's log. The first turn of a claim drops the log of an earlier one.

arg 1  job id
arg 2  fence of the claim
arg 3  index of the turn: 0 for the claim's first
arg 4  the turn (blob)
arg 5  most bytes of a log

Returns 'ok' (also when the log has the turn), 'fenced', 'gap' (an index beyond the log's end) or 'large'.
Writes  turns:<id>, job:<id>
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return 'fenced' end
local turn, blob = tonumber(arg(3)), arg(4)
local turns = key('turns', job.id)
local counts = call('HMGET', job.key, 'nturns', 'turn_bytes')
local count, bytes = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
local ours = job.log == arg(2)
if not ours then count, bytes = 0, 0 end
if turn < count then return 'ok' end
if turn > count then return 'gap' end
if bytes + #blob > tonumber(arg(5)) then return 'large' end
if not ours then call('DEL', turns) end
call('RPUSH', turns, blob)
call('HSET', job.key, 'log', arg(2), 'nturns', int(count + 1), 'turn_bytes', int(bytes + #blob), 'active', NOW)
tell(job, 'turn ' .. arg(3))
return 'ok'
