--[[ Give a job's backend back before its stage ends. What ends a claim, by whatever way, gives back what is left.

arg 1  job id
arg 2  fence of the claim

Returns 1 when the job has no backend any more, 0 when the claim is of the past.
Writes  job:<id>, assigned:<url>, heap:<model>, joining:<model>, backends
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return 0 end
release_backend(job)
return 1
