--[[ Register a backend, or update it. Jobs that it has stay its own.

arg 1  url
arg 2  record (JSON)

Returns 1 when it may be given to jobs, else 0.
Writes  backends, heap:<model>, joining:<model>
]]
local url, record = arg(1), cjson.decode(arg(2))
local before = call('HGET', key('backends'), url)
before = before and cjson.decode(before)
if before and (before.model ~= record.model or record.state ~= 'up') then close_backend(before, url) end
local text = arg(2)
if before and before.weights and before.policy_version == record.policy_version then
  record.weights = before.weights -- still those that were loaded then, see policy_renew
  text = cjson.encode(record)
end
call('HSET', key('backends'), url, text)
if before then call('PUBLISH', key('backends'), url) end
if record.state ~= 'up' then return 0 end
open_backend(record, url)
call('PUBLISH', key('backends'), record.model)
return 1
