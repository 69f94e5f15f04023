--[[ Append to the job's log what a tool call of its last turn gave.

arg 1  job id
arg 2  fence of the claim
arg 3  index of the turn
arg 4  number of the call in the turn, from 0
arg 5  the observation (blob)
arg 6  most bytes of a log
arg 7  '1' when it is the last of the turn, else ''
arg 8  '1' when it is no call's, but says behind the last one how the run of the agent ended, else ''

Returns 'ok' (also when the log has it), 'fenced', 'gap' (calls or turns before it are missing), 'closed' (the turn has
        no more calls) or 'large'.
Writes  turns:<id>, job:<id>, events:<id>, stalled
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return 'fenced' end
local turn, number, blob = tonumber(arg(3)), tonumber(arg(4)), arg(5)
local last = job.log == arg(2) and logged(job) - 1 or -1
if turn < last then return 'ok' end
if turn > last then return 'gap' end
local state = call('HMGET', job.key, 'calls', 'open', 'turn_bytes')
local calls, bytes = tonumber(state[1]), tonumber(state[3])
if number < calls then return 'ok' end
if arg(8) ~= '1' then
  if state[2] ~= '1' then return 'closed' end
  if number > calls then return 'gap' end
end
if bytes + #blob > tonumber(arg(6)) then return 'large' end
call('RPUSH', key('turns', job.id), blob)
call('HSET', job.key, 'calls', int(number + 1), 'open', arg(7) == '1' and '' or '1', 'turn_bytes', int(bytes + #blob),
  'active', NOW)
unstall(job)
if arg(8) ~= '1' then tell(job, 'call ' .. arg(3) .. ' ' .. arg(4)) end
return 'ok'
