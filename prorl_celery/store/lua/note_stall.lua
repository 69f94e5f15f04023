--[[ Note that a running job does not move, or that it does again. The same stall again changes nothing.

arg 1  job id
arg 2  fence of the claim
arg 3  what it does (JSON object with `act`, `thread`, `since_s`), or '' when it moves

Returns 1, or 0 when the claim is gone.
Writes  job:<id>, events:<id>, stalled
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return 0 end
if arg(3) == '' then
  unstall(job)
  return 1
end
local stall = cjson.decode(arg(3))
local before = job.stall and cjson.decode(job.stall)
if before and before.act == stall.act and before.thread == stall.thread then return 1 end
stall.since = now - math.floor(stall.since_s * 1000)
stall.since_s = nil
call('HSET', job.key, 'stall', cjson.encode(stall))
call('ZADD', key('stalled'), int(stall.since), job.id)
tell(job, 'stalled ' .. job.stage)
return 1
