--[[ Start a job over, uncharged, that waits for a stage in sandboxes that are gone.

arg 1  'mend'
arg 2  job id
arg 3  fence under which it waits

Returns {findings (none), messages {stage, queue, id, fence, priority}}.
Writes  what sends a job back to init
]]
local job = load(arg(2))
if job and job.state == 'queued' and job.fence == tonumber(arg(3)) then
  messages[1] = begin_again(job)
end
return {findings, messages}
