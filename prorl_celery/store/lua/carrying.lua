--[[ Put behind `filling.lua`: how a job's end is counted, how a batch ends by it, what the next one takes over.

A job's end is counted where the job ends (`settle`, called by `conclude`, which runs once in a job's life). That closes
its group when nothing more can come, ends the batch when its last group was won, and starts as many more prompts as
there is room for.

A batch's jobs that are no longer wanted are put into `revoked`: none of them can be claimed any more, and those that run
are told by the next heartbeat. That is one command for all of them; each is ended by whoever meets it.
]]

-- Give up all open groups of a batch that is over.
local function drop_groups(b)
  local surplus = {}
  call('ZREM', key('batches_left'), b.id)
  for _, id in ipairs(call('SMEMBERS', key('dapo_open', b.id))) do
    local group = load_group(string.match(id, '^(.*):(%d+)$'))
    if group then
      group.mixed = differs(b, group)
      close_group(b, group, 'revoked', surplus)
    end
  end
  revoke(surplus)
end

-- The last group was won.
local function reach_target(b)
  end_batch(b, 'complete')
  if b.on_target == 'carry_over' then
    call('ZADD', key('batches_left'), int(now + CARRIED), b.id)
  else
    drop_groups(b)
  end
end

-- Count the end of a job to its group and its batch. Called once in a job's life.
local function settle(job, state)
  local told = call('HMGET', job.key, 'prompt', 'sample', 'redraw', 'reward', 'oldest', 'r_init', 'r_rollout', 'r_eval',
    'sampled')
  local prompt = told[1]
  if not prompt then return end
  call('SREM', key('members', prompt, job.batch), job.id)
  call('ZREM', key('revoked'), job.id)
  local group = load_group(job.batch, prompt)
  local b = group and load_batch(group.owner)
  if not b then return end
  add(b, 'live', -1)
  local ms = tonumber(told[6] or 0) + tonumber(told[7] or 0) + tonumber(told[8] or 0)
  local tokens = tonumber(told[9] or 0)
  if group.state ~= 'open' then
    waste(b, 'revoked', ms, tokens)
    refill(b)
    save(b)
    return
  end
  group.mixed = differs(b, group)
  local before, was_mixed = group.scored, group.mixed
  local reward = state == 'completed' and tonumber(told[4])
  if reward then
    group.scored = group.scored + 1
    group.min = math.min(group.min or reward, reward)
    group.max = math.max(group.max or reward, reward)
    group.mixed = group.max - group.min > b.spread
    group.ms, group.tokens = group.ms + ms, group.tokens + tokens
    group.oldest = math.min(group.oldest or math.huge, tonumber(told[5] or '') or math.huge)
    call('HSET', group.key, 'scored', group.scored, 'min', string.format('%.17g', group.min),
      'max', string.format('%.17g', group.max), 'job:' .. told[2], job.id, 'ms', int(group.ms),
      'tokens', int(group.tokens))
    if group.oldest < math.huge then call('HSET', group.key, 'oldest', int(group.oldest)) end
  else
    waste(b, 'failed', ms, tokens)
    -- Also of a batch that is over: what is drawn then waits for whoever adopts the group. Not where the prompt's request
    -- was lost: no sample of it can be run.
    if state ~= 'cancelled' and b.policy == 'retry' and tonumber(told[3]) < REDRAWS
      and call('HEXISTS', key('dapo_specs', job.batch), prompt) == 1 then
      add(b, 'live', 1)
      call('HINCRBY', dapo(b.id), 'redrawn', 1)
      draw(b, job.batch, prompt, told[2], tonumber(told[3]) + 1)
      save(b)
      return
    end
    group.failed = group.failed + 1
    call('HSET', group.key, 'failed', group.failed, 'job:' .. told[2], job.id)
  end
  -- Taken out with the weight that it had, and, if it stays open, put back with the one that it has.
  weigh_group(b, before, was_mixed, -1)
  weigh_group(b, group.scored, group.mixed, 1)
  local closes = verdict(b, group)
  if closes and live(b) then
    close_group(b, group, closes)
    if b.won == b.target then reach_target(b) end
  end
  -- Of a batch that is over the group stays open: whoever adopts it counts it.
  refill(b)
  save(b)
end

-- Whether a job may be claimed: 'revoked' when its batch has no more use for it, 'parked' when it must wait for another
-- batch to adopt it. What is past init goes on, since it holds sandboxes.
local function barred(job)
  local prompt = call('HGET', job.key, 'prompt')
  if not prompt then return nil end
  if call('ZSCORE', key('revoked'), job.id) then return 'revoked' end
  if job.stage ~= 'init' then return nil end
  local owner = call('HGET', group_key(job.batch, prompt), 'owner')
  return owner and call('HGET', dapo(owner), 'state') == 'complete' and 'parked' or nil
end

-- The oldest policy version that anything in the group was sampled under: also what is not finished yet.
local function oldest_of(group, ids)
  local oldest = group.oldest
  for _, id in ipairs(ids) do
    local told = tonumber(call('HGET', key('job', id), 'oldest') or '')
    if told and (not oldest or told < oldest) then oldest = told end
  end
  return oldest
end

-- A job that waited for an adoption goes on.
local function unpark(id)
  local job = load(id)
  if not job or call('HDEL', job.key, 'parked') == 0 then return end
  enqueue(job, job.queue)
  born[#born + 1] = {job.stage, job.queue, job.id, job.fence, tonumber(job.prio)}
end

-- Make a group of the batch `old` one of the batch `b`.
local function adopt(b, old, group, ids)
  call('HSET', group.key, 'owner', b.id)
  call('SREM', key('dapo_open', old.id), group.id)
  call('SADD', key('dapo_open', b.id), group.id)
  weigh_group(old, group.scored, group.mixed, -1)
  add(old, 'open', -1)
  add(old, 'live', -#ids)
  group.mixed = differs(b, group)
  weigh_group(b, group.scored, group.mixed, 1)
  add(b, 'open', 1)
  add(b, 'live', #ids)
  add(b, 'carried', 1)
  -- Its samples that are not drawn yet, or not claimed, need what the batch that drew it was asked for.
  for _, name in ipairs({'dapo', 'dapo_specs', 'dapo_names'}) do call('PEXPIRE', key(name, group.batch), ID_TTL) end
  for _, id in ipairs(ids) do unpark(id) end
end

-- Take over the open groups that another batch left, with their finished samples. A group that has all of them counts at
-- once; one that is too old is given up.
local function adopt_groups(b, old, version, staleness)
  call('ZREM', key('batches_left'), old.id)
  set(old, 'adopted_by', b.id)
  local adopted = {}
  for _, id in ipairs(call('SMEMBERS', key('dapo_open', old.id))) do
    local group = load_group(string.match(id, '^(.*):(%d+)$'))
    if group then
      group.mixed = differs(old, group)
      local ids = unfinished(group.batch, group.prompt)
      local oldest = oldest_of(group, ids)
      if oldest and version and version - oldest > staleness then
        close_group(old, group, 'revoked')
      else
        adopt(b, old, group, ids)
        adopted[#adopted + 1] = group
      end
    end
  end
  save(old)
  -- Judged when all are here: if the target is met by these alone, what becomes of the others is as at any batch's end.
  for _, group in ipairs(adopted) do
    local closes = live(b) and verdict(b, group)
    if closes then
      close_group(b, group, closes)
      if b.won == b.target then reach_target(b) end
    end
  end
end
