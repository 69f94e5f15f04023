--[[ The nodes that are alive, and their processes that are.

Returns for each node {record (JSON), 1 when it should drain, jobs queued for the node or running on it, records of its
processes (JSON) ...}
Writes  nothing
]]
local nodes = {}
for _, member in ipairs(call('ZRANGEBYSCORE', key('nodes', 'seen'), '(' .. NOW, '+inf')) do
  local name = string.match(member, '^(.*) [^ ]*$')
  local node = {call('HGET', key('nodes'), member), call('SISMEMBER', key('draining'), member),
    call('SCARD', key('on', name))}
  for _, value in ipairs(call('HVALS', key('processes', member))) do
    local believed, record = string.match(value, '^(%d+) (.*)$')
    if tonumber(believed) > now then node[#node + 1] = record end
  end
  if node[1] then nodes[#nodes + 1] = node end
end
return nodes
