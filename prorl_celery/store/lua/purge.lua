--[[ Take away what has expired: results, entries of the results stream, records of nodes that are gone.

arg 1  most jobs to purge

Returns how many jobs were purged.
Writes  job:<id> (a tombstone stays until Redis expires it), data:<id>, turns:<id>, events:<id>, index:*, batch:*,
        expiry, dead, results, results:trimmed, nodes, nodes:seen, draining
]]
local due = call('ZRANGEBYSCORE', key('expiry'), '-inf', NOW, 'LIMIT', 0, tonumber(arg(1)))
for _, id in ipairs(due) do
  local job = load(id)
  if job then
    call('ZREM', index(job), id)
    if job.batch then call('ZREM', key('batch', job.batch), id) end
    local kept = call('HMGET', job.key, 'hash', 'created', 'finished')
    local left = tonumber(kept[3]) + ID_TTL - now
    call('DEL', job.key, key('data', id), key('turns', id), key('events', id))
    if left > 0 then
      call('HSET', job.key, 'hash', kept[1], 'state', job.state, 'stage', job.stage, 'attempt', job.attempt,
        'created', kept[2], 'finished', kept[3], 'gone', '1')
      call('PEXPIRE', job.key, int(left))
    end
  else
    -- Redis expired the record before this got to it: the index member is all that is left.
    for _, state in ipairs({'completed', 'failed', 'cancelled', 'timed_out'}) do
      call('ZREM', key('index', state), id)
    end
  end
  call('ZREM', key('expiry'), id)
  call('ZREM', key('dead'), id)
end
local stream = key('results')
local old = call('XRANGE', stream, '-', int(now - RESULT_TTL), 'COUNT', 1000)
if #old > 0 then
  local last = old[#old][1]
  for _, entry in ipairs(old) do call('XDEL', stream, entry[1]) end
  call('SET', key('results', 'trimmed'), last)
end
local gone = call('ZRANGEBYSCORE', key('nodes', 'seen'), '-inf', NOW, 'LIMIT', 0, 100)
for _, member in ipairs(gone) do
  call('HDEL', key('nodes'), member)
  call('ZREM', key('nodes', 'seen'), member)
  call('SREM', key('draining'), member)
end
return #due
