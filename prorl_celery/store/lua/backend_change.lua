--[[ Change some fields of a backend's record.

arg 1  url
arg 2  fields to set (JSON object); not the model, not the weight
arg 3  errors to add
arg 4  id of this operation: a replay changes nothing

Returns the record (JSON), or false when there is no such backend.
Writes  backends, heap:<model>
]]
local url = arg(1)
local text = call('HGET', key('backends'), url)
if not text then return false end
local record = cjson.decode(text)
if record.op == arg(4) then return text end
local was_up = record.state == 'up'
for field, value in pairs(cjson.decode(arg(2))) do record[field] = value end
if record.state == 'up' then record.removing = nil end
record.errors = (record.errors or 0) + tonumber(arg(3))
record.op = arg(4)
text = cjson.encode(record)
call('HSET', key('backends'), url, text)
if record.state == 'up' then
  call('ZADD', key('heap', record.model), call('SCARD', key('assigned', url)) / record.weight, url)
  if not was_up then call('PUBLISH', key('backends'), record.model) end
else
  call('ZREM', key('heap', record.model), url)
end
return text
