--[[ What a process that makes model calls must know before each of them; it tells what it does by the same step.

arg 1  the process; '' to look only, and with arg 3 of 0 it is forgotten
arg 2  what it tells (JSON): the epoch that it obeys, calls in flight and jobs held by model
arg 3  how long that is believed, ms

In one step: a process that is not listed yet cannot have missed a pause, and one that is listed is waited for.

Returns {epoch, {url, version or '', weights' epoch or '' ...} of the backends, {scope, pause (JSON), ms left ...}}
Writes  policy:processes
]]
local processes = key('policy', 'processes')
if arg(1) ~= '' then
  if tonumber(arg(3)) == 0 then
    call('HDEL', processes, arg(1))
  else
    local before = call('HGET', processes, arg(1))
    call('HSET', processes, arg(1), int(now + tonumber(arg(3))) .. ' ' .. arg(2))
    call('PEXPIRE', processes, arg(3))
    if not before or string.match(before, '^%d+ (.*)$') ~= arg(2) then call('PUBLISH', key('policy', 'told'), '') end
  end
end
local backends, pauses = {}, {}
local records = call('HGETALL', key('backends'))
for i = 1, #records, 2 do
  local record = cjson.decode(records[i + 1])
  local at = #backends
  backends[at + 1] = records[i]
  backends[at + 2] = record.policy_version and int(record.policy_version) or ''
  backends[at + 3] = record.weights and int(record.weights) or ''
end
local found = call('HGETALL', key('policy', 'pauses'))
for i = 1, #found, 2 do
  local left = tonumber(cjson.decode(found[i + 1]).till) - now
  if left > 0 then
    local at = #pauses
    pauses[at + 1], pauses[at + 2], pauses[at + 3] = found[i], found[i + 1], int(left)
  end
end
return {tonumber(call('GET', key('policy', 'epoch')) or 0), backends, pauses}
