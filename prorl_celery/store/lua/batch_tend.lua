--[[ Look after batches: end jobs that are revoked, batches that wait too long for prompts, what nobody adopts.

arg 1  most revoked jobs to look at
arg 2  how many revoked jobs to pass over: those that were seen to run
arg 3  how long a worker has to act on a revocation, ms

Returns {jobs that were looked at, jobs that were passed over}
Writes  revoked, dapo:<batch>, batches, batches_live, batches_left, group:*; what ends a job
]]
local most, skip, patience = tonumber(arg(1)), tonumber(arg(2)), tonumber(arg(3))
local page = call('ZRANGE', key('revoked'), skip, skip + most - 1, 'WITHSCORES')
local passed = 0
for i = 1, #page, 2 do
  local job = load(page[i])
  if not job or ended(job) then
    call('ZREM', key('revoked'), page[i])
  elseif job.state == 'queued' or tonumber(page[i + 1]) <= now - patience then
    if job.state == 'running' then add_times(job, int(math.max(0, now - tonumber(job.since))), 0) end
    job.fence = job.fence + 1
    conclude_revoked(job, 'tend')
  else
    passed = passed + 1
  end
end
if skip == 0 then
  for _, id in ipairs(call('ZRANGE', key('batches_live'), 0, -1)) do
    local told = call('HMGET', dapo(id), 'state', 'waiting_since', 'idle', 'open')
    if not told[1] then
      call('ZREM', key('batches_live'), id)
    elseif told[1] == 'filling' and tonumber(told[4] or 0) == 0 then
      -- Whoever made it has not come to send its prompts: it waits for them.
      local b = load_batch(id)
      refill(b)
      save(b)
    elseif told[1] == 'waiting_for_prompts' and tonumber(told[2]) + tonumber(told[3]) < now then
      -- No more will come: what runs may still win, and when nothing runs the batch is exhausted.
      local b = load_batch(id)
      set(b, 'more', 0)
      set(b, 'state', 'filling')
      refill(b)
      save(b)
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', key('batches_left'), '-inf', NOW, 'LIMIT', 0, 10)) do
    local b = load_batch(id)
    if b then
      drop_groups(b)
      save(b)
    end
    call('ZREM', key('batches_left'), id)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', key('batches'), '-inf', int(now - ID_TTL), 'LIMIT', 0, 10)) do
    if call('EXISTS', dapo(id)) == 0 then call('ZREM', key('batches'), id) end
  end
end
return {#page / 2, passed}
