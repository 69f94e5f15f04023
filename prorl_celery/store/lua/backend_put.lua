--[[ Register a backend, or update it. Jobs that it has stay its own.

arg 1  url
arg 2  record (JSON)

Returns 1 when it may be given to jobs, else 0.
Writes  backends, heap:<model>
]]
local url, record = arg(1), cjson.decode(arg(2))
local before = call('HGET', key('backends'), url)
if before then call('ZREM', key('heap', cjson.decode(before).model), url) end
call('HSET', key('backends'), url, arg(2))
if record.state ~= 'up' then return 0 end
call('ZADD', key('heap', record.model), call('SCARD', key('assigned', url)) / record.weight, url)
call('PUBLISH', key('backends'), record.model)
return 1
