--[[ Append a turn to the job's log. The first turn of a claim that does not go on drops the log of an earlier one.

arg 1  job id
arg 2  fence of the claim
arg 3  index of the turn: 0 for the attempt's first
arg 4  the turn (blob)
arg 5  most bytes of a log
arg 6  '1' when the observations of its calls are to follow, else ''
arg 7  how many tokens were sampled in it
arg 8  the oldest policy version that they were sampled under, or ''
arg 9  '1' when it goes on from the turn before, all of whose calls must have ended, else ''

Returns 'ok' (also when the log has the turn), 'fenced', 'gap' (turns or calls before it are missing) or 'large'.
Writes  turns:<id>, job:<id>, events:<id>, stalled
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return 'fenced' end
local turn, blob = tonumber(arg(3)), arg(4)
local turns = key('turns', job.id)
local ours = job.log == arg(2)
local count, bytes, sampled, oldest = 0, 0, 0, nil
if ours then
  local told = call('HMGET', job.key, 'turn_bytes', 'sampled', 'oldest')
  count, bytes, sampled, oldest = logged(job), tonumber(told[1]), tonumber(told[2] or 0), tonumber(told[3] or '')
end
if turn < count then return 'ok' end
if turn > count or (ours and arg(9) == '1' and call('HGET', job.key, 'open') == '1') then return 'gap' end
if bytes + #blob > tonumber(arg(5)) then return 'large' end
if not ours then call('DEL', turns) end
call('RPUSH', turns, blob)
call('HSET', job.key, 'log', arg(2), 'nturns', int(count + 1), 'turn_bytes', int(bytes + #blob), 'active', NOW,
  'calls', '0', 'open', arg(6), 'sampled', int(sampled + tonumber(arg(7))),
  'oldest', oldest and int(math.min(oldest, tonumber(arg(8)) or oldest)) or arg(8))
unstall(job)
local lost = job.lost and tonumber(string.match(job.lost, '^rollout:(%d+)$'))
if lost and count + 1 > lost then forgive(job) end
tell(job, 'turn ' .. arg(3))
return 'ok'
