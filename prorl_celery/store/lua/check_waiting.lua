--[[ The jobs of a queue that were published a while ago: the broker should have a message of each.

arg 1  'look'
arg 2  level and queue, "<level>:<queue>"
arg 3  where to go on, '0' at first
arg 4  about how many to look at
arg 5  how long ago, ms

Returns {where to go on; job ids and fences, in turn, with blanks between}.
Writes  nothing
]]
local page = call('ZSCAN', key('queued', arg(2)), arg(3), 'COUNT', arg(4))
local before, flat = now - tonumber(arg(5)), {}
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local record = call('HMGET', key('job', id), 'state', 'level', 'queue', 'fence', 'published')
  local here = record[1] == 'queued' and record[2] and record[3] and record[2] .. ':' .. record[3] == arg(2)
  if here and record[4] and (tonumber(record[5]) or now) < before then
    flat[#flat + 1], flat[#flat + 2] = id, record[4]
  end
end
return {page[1], table.concat(flat, ' ')}
