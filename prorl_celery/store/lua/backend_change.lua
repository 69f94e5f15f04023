--[[ Change some fields of a backend's record.

arg 1  url
arg 2  fields to set (JSON object); not the model, not the weight
arg 3  errors to add
arg 4  id of this operation: a replay changes nothing

Returns the record (JSON), or false when there is no such backend, or none any more: what drains and goes down is gone.
Writes  backends, heap:<model>, joining:<model>, assigned:<url>
]]
local url = arg(1)
local text = call('HGET', key('backends'), url)
if not text then return false end
local record, patch = cjson.decode(text), cjson.decode(arg(2))
if record.op == arg(4) then return text end
if record.removing and patch.state == 'down' then
  forget_backend(record, url)
  return false
end
local state, version = record.state, record.policy_version
for field, value in pairs(patch) do record[field] = value end
if record.state == 'up' then record.removing = nil end
record.errors = (record.errors or 0) + tonumber(arg(3))
record.op = arg(4)
text = cjson.encode(record)
call('HSET', key('backends'), url, text)
if record.state == 'up' then open_backend(record, url) else close_backend(record, url) end
if record.state ~= state or record.policy_version ~= version then
  call('PUBLISH', key('backends'), record.state == 'up' and record.model or url)
end
return text
