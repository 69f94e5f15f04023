--[[ Make the leases of a process's jobs lapse now: the process is known to be dead. The next sweep handles them.

arg 1  the process, "<node> <boot> <name> <number>"

Returns how many.
Writes  leases, lost:<process>
]]
local process = arg(1)
local node = string.match(process, '^(.*) %S+ %S+ %S+$')
if not node then return 0 end
local jobs = {}
for _, job in ipairs(running_on(node)) do
  if job[2] == process then jobs[#jobs + 1] = job[3] .. '|' .. job[1] end
end
if #jobs == 0 then return 0 end
company(process, #jobs)
-- The score 0 says for certain what a score of the past only suggests.
for _, member in ipairs(jobs) do call('ZADD', key('leases'), 'XX', 0, member) end
return #jobs
