--[[ Take a backend away: now, or when its last job has ended.

arg 1  url
arg 2  'now' or 'drain'

Returns 1 when it is gone, 0 when jobs are left on it, -1 when there is no such backend.
Writes  backends, heap:<model>, joining:<model>, assigned:<url>
]]
local url = arg(1)
local text = call('HGET', key('backends'), url)
if not text then return -1 end
local record = cjson.decode(text)
-- What is down has no call that could be let finish.
if arg(2) == 'now' or record.state == 'down' or call('SCARD', key('assigned', url)) == 0 then
  forget_backend(record, url)
  return 1
end
if record.removing then return 0 end
close_backend(record, url)
record.state, record.removing = 'draining', true
call('HSET', key('backends'), url, cjson.encode(record))
return 0
