--[[ Have a node take no new jobs, or have it take them again.

arg 1  the node
arg 2  1 to drain it, 0 to undo that

Returns {the "<node> <boot>" of each of its boots that are alive}
Writes  draining
]]
local members = {}
for _, member in ipairs(call('ZRANGEBYSCORE', key('nodes', 'seen'), '(' .. NOW, '+inf')) do
  if string.match(member, '^(.*) [^ ]*$') == arg(1) then
    members[#members + 1] = member
    call(arg(2) == '1' and 'SADD' or 'SREM', key('draining'), member)
  end
end
return members
