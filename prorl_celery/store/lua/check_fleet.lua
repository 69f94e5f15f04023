--[[ Check what there is once: counters, the nodes' records, what the lost-message rule remembers, keys that must expire.

arg 1         'look' or 'mend'
arg 2         highest order of publishing in any queue, or 0
arg 3, 4, ... names (without the prefix) of keys that must expire

Returns {findings {kind, subject, text, mark, ''}, messages}.
Writes  with 'look' nothing; with 'mend' seq, passed, nodes, nodes:seen, draining, counts, and expiries
]]
local FORGOTTEN = 60000

local seq, highest = call('GET', key('seq')), tonumber(arg(2))
if (seq or highest > 0) and not (tonumber(seq) and tonumber(seq) >= highest) then
  found('sequence', 'seq', 'would give out orders that are in use', '', function()
    call('SET', key('seq'), int(math.max(highest, tonumber(seq) or 0)))
  end)
  seq = nil
end

local PARTS = {snap = true, at = true, old = true, empty = true}
local queues = {}
for _, queue in ipairs(call('SMEMBERS', key('queues'))) do queues[queue] = true end
local known = call('HGETALL', key('passed'))
for i = 1, #known, 2 do
  local field, value = known[i], tonumber(known[i + 1])
  local part = string.match(field, ':(%a+)$')
  part = PARTS[part] and part
  local lane = part and string.sub(field, 1, -#part - 2) or field
  local queue = string.match(lane, '^[0369]:(.*)$')
  local read = queues[queue or ''] or call('EXISTS', key('queued', lane)) == 1
  local limit = (part == 'at' or part == 'empty') and now or tonumber(seq)
  if not read or not value or limit and value > limit then
    found('stray-passed', field, 'is remembered of no queue, or is ahead of all', '', function()
      call('HDEL', key('passed'), field)
    end)
  end
end

for _, member in ipairs(call('HKEYS', key('nodes'))) do
  if not call('ZSCORE', key('nodes', 'seen'), member) then
    found('stray-node', member, 'has a record that nothing takes away', '', function()
      call('HDEL', key('nodes'), member)
    end)
  end
end
for _, member in ipairs(call('ZRANGE', key('nodes', 'seen'), 0, -1)) do
  if call('HEXISTS', key('nodes'), member) == 0 then
    found('stray-node', member, 'was seen and has no record', '', function()
      call('ZREM', key('nodes', 'seen'), member)
    end)
  end
end
for _, member in ipairs(call('SMEMBERS', key('draining'))) do
  if not call('ZSCORE', key('nodes', 'seen'), member) then
    found('stray-node', member, 'is to drain and is gone', '', function() call('SREM', key('draining'), member) end)
  end
end

local counts = call('HGETALL', key('counts'))
for i = 1, #counts, 2 do
  if not string.match(counts[i + 1], '^%d+$') then
    found('count', counts[i], 'is counted as ' .. counts[i + 1], '', function()
      call('HDEL', key('counts'), counts[i])
    end)
  end
end

for i = 3, #ARGV - 4 do
  local name = arg(i)
  if call('PTTL', key(name)) == -1 then
    found('no-expiry', key(name), 'would stay for ever', '', function()
      call('PEXPIRE', key(name), FORGOTTEN)
    end)
  end
end
return {findings, messages}
