--[[ Check the results stream: that each entry is the one that its job names.

arg 1         'look' or 'mend'
arg 2         where to go on, '-' at first; '' for the entries that are named
arg 3         how many to look at
arg 4, 5, ... entries

Returns {findings {kind, job, text, mark, entry}, messages (none), where to go on, '' at the end}.
Writes  with 'look' nothing; with 'mend' results
]]
local stream = key('results')

local function judge(entry, fields)
  about = entry
  local id
  for i = 1, #fields, 2 do
    if fields[i] == 'job' then id = fields[i + 1] end
  end
  local known = call('HMGET', key('job', id or ''), 'entry', 'hash', 'gone')
  if known[1] == entry or known[3] then return end
  local kind = known[2] and 'told-twice' or 'told-of-none'
  found(kind, id or entry, 'is told of by ' .. entry .. ', which is not its own', '', function()
    call('XDEL', stream, entry)
  end)
end

if arg(2) == '' then
  for i = 4, #ARGV - 4 do
    local there = call('XRANGE', stream, arg(i), arg(i))[1]
    if there then judge(there[1], there[2]) end
  end
  return {findings, messages, ''}
end
local count = tonumber(arg(3))
local page = call('XRANGE', stream, arg(2) == '-' and '-' or '(' .. arg(2), '+', 'COUNT', count)
for _, entry in ipairs(page) do judge(entry[1], entry[2]) end
return {findings, messages, #page == count and page[count][1] or ''}
