--[[ Strike jobs from a backend's set that it is not assigned to: a guard, for the scripts leave none.

arg 1  url
arg 2  where to go on in the set, '0' at first
arg 3  about how many jobs to look at

Returns {where to go on, '0' at the end; how many were struck}
Writes  assigned:<url>, heap:<model>, joining:<model>, backends
]]
local url = arg(1)
local assigned, struck = key('assigned', url), 0
local page = call('SSCAN', assigned, arg(2), 'COUNT', arg(3))
for _, id in ipairs(page[2]) do
  local job = load(id)
  if not job or job.state ~= 'running' or job.held ~= '1' or job.backend ~= url then
    call('SREM', assigned, id)
    struck = struck + 1
  end
end
if page[1] == '0' then
  local record = call('HGET', key('backends'), url)
  record = record and cjson.decode(record)
  if not record then
    call('DEL', assigned)
  elseif record.removing and call('SCARD', assigned) == 0 then
    forget_backend(record, url)
  elseif record.state == 'up' then
    open_backend(record, url)
  else
    close_backend(record, url)
  end
end
return {page[1], struck}
