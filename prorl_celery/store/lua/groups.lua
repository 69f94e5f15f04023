--[[ Put between `lib.lua` and `life.lua`: batches, and the groups of their prompts. No other process decides.

    batch    dapo:<batch>              how many groups are wanted, how they are judged, how far it has come
    group    group:<prompt>:<batch>    the samples of one prompt: its jobs are named <batch>:<prompt>:<sample>

A job's end is counted where the job ends (`settle`, called by `conclude`, which runs once in a job's life). That closes
its group when nothing more can come, ends the batch when its last group was won, and starts as many more prompts as
there is room for. Messages of jobs that were started so are given to the caller behind the script's own reply.

A batch's jobs that are no longer wanted are put into `revoked`: none of them can be claimed any more, and those that run
are told by the next heartbeat. That is one command for all of them; each is ended by whoever meets it.
]]

-- How many groups that may be won are kept in flight for each one that is missing. With less the last groups are
-- waited for longer; with more, more is thrown away (see `prorl bench dapo`).
local AHEAD = 3
-- How often a sample is drawn anew after it failed.
local REDRAWS = 2
-- How long what a batch left is kept for another that adopts it, ms.
local CARRIED = 3600000
-- A prompt whose group was uniform is remembered with a weight that is halved with each so many batches, and forgotten
-- below the least.
local HALVED_AFTER, LEAST_WEIGHT, MOST_REMEMBERED = 10, 0.1, 100000

local BATCH_NUMBERS = {'target', 'samples', 'room', 'min_samples', 'stop_after', 'more', 'open', 'live', 'mixed', 'won',
  'uniform', 'failed', 'revoked', 'carried', 'drawn', 'prompts', 'waiting_since'}
local BATCH_REALS = {'spread', 'hope'}
local BATCH_TEXTS = {'state', 'policy', 'on_target', 'decided', 'filter', 'prio', 'level', 'max', 'tags', 'adopted_by',
  'memory'}

local function dapo(batch) return key('dapo', batch) end
local function group_key(batch, prompt) return key('group', prompt, batch) end

-- The batch's record, or nil when this is no batch of prompts.
local function load_batch(id)
  local fields = {}
  for _, names in ipairs({BATCH_NUMBERS, BATCH_REALS, BATCH_TEXTS}) do
    for _, name in ipairs(names) do fields[#fields + 1] = name end
  end
  local values = call('HMGET', dapo(id), unpack(fields))
  local b = {id = id, changed = {}}
  for i, name in ipairs(fields) do
    b[name] = values[i]
    if i <= #BATCH_NUMBERS + #BATCH_REALS then b[name] = tonumber(values[i] or 0) end
  end
  return b.state and b or nil
end

local function set(b, name, value)
  b[name] = value
  b.changed[name] = true
end

local function add(b, name, more) set(b, name, b[name] + more) end

local function save(b)
  local fields = {}
  for name in pairs(b.changed) do
    local value = b[name]
    fields[#fields + 1] = name
    fields[#fields + 1] = type(value) == 'number' and string.format('%.17g', value) or value
  end
  b.changed = {}
  if #fields > 0 then call('HSET', dapo(b.id), unpack(fields)) end
end

local function live(b) return b.state == 'filling' or b.state == 'waiting_for_prompts' end

-- Tell those who wait for news of the batch.
local function tell_batch(b, what) call('PUBLISH', key('batch_news'), b.id .. ' ' .. what) end

-- Let none of these jobs go on; `for_good`: a cancel of the batch, else a surplus.
local function revoke(ids)
  for first = 1, #ids, 400 do
    local members = {}
    for i = first, math.min(first + 399, #ids) do
      members[#members + 1] = NOW
      members[#members + 1] = ids[i]
    end
    call('ZADD', key('revoked'), unpack(members))
  end
  if #ids > 0 then call('PUBLISH', key('revoked'), '') end
end

-- The jobs of a group that have not ended.
local function unfinished(batch, prompt)
  return call('SMEMBERS', key('members', prompt, batch))
end

-- What an open group is worth to the batch: one that has a difference is won, another the less likely so the more of
-- its samples are alike.
local function weigh_group(b, scored, spread, sign)
  if b.filter == '1' and spread then
    add(b, 'mixed', sign)
  else
    add(b, 'hope', sign * (b.filter == '1' and 1 / (1 + scored) or 1))
  end
end

-- Whether those in flight are too few for what is missing.
local function wants_more(b)
  local closed = b.won + b.uniform + b.failed
  local rate = (b.won + 1) / (closed + (b.filter == '1' and 2 or 1))
  return b.mixed + rate * b.hope < (b.filter == '1' and AHEAD or 1) * (b.target - b.won) - 1e-6
end

-- Jobs that this script has made; their messages are published by whoever runs it.
local born = {}

-- A sample of a prompt becomes a job. Its request is the prompt's, kept once for all samples.
local function draw(b, batch, prompt, sample, redraw)
  local id = batch .. ':' .. prompt .. ':' .. sample .. (redraw > 0 and ':r' .. redraw or '')
  local seq = int(call('INCR', key('seq')))
  local job = {id = id, key = key('job', id), state = 'queued', stage = 'init', level = b.level, seq = seq}
  local record = {'hash', 'batch', 'create_op', '', 'state', 'queued', 'stage', 'init', 'fence', '0', 'last', '',
    'attempt', '1', 'max', b.max, 'prio', b.prio, 'level', b.level, 'seq', seq, 'created', NOW, 'since', NOW,
    'active', NOW, 'rf', '0', 'log', '0', 'batch', batch, 'group', batch .. ':' .. prompt, 'prompt', prompt,
    'sample', sample, 'redraw', redraw}
  if b.tags and b.tags ~= '' then record[#record + 1] = 'tags'; record[#record + 1] = b.tags end
  call('HSET', job.key, unpack(record))
  call('HSET', key('data', id), 'spec', '')
  call('ZADD', index(job), seq, id)
  call('ZADD', key('batch', batch), seq, id)
  call('SADD', key('members', prompt, batch), id)
  enqueue(job, 'init')
  born[#born + 1] = {'init', 'init', id, 0, tonumber(b.prio)}
end

-- Start a prompt: all samples of it.
local function start_prompt(b, prompt)
  call('HSET', group_key(b.id, prompt), 'owner', b.id, 'state', 'open', 'scored', 0, 'failed', 0, 'began', NOW)
  call('SADD', key('dapo_open', b.id), b.id .. ':' .. prompt)
  add(b, 'drawn', 1)
  add(b, 'open', 1)
  add(b, 'live', b.samples)
  weigh_group(b, 0, false, 1)
  for sample = 0, b.samples - 1 do draw(b, b.id, prompt, int(sample), 0) end
end

-- Note what was spent on what is thrown away.
local function waste(b, why, ms, tokens)
  if ms > 0 then call('HINCRBY', dapo(b.id), why .. '_ms', int(ms)) end
  if tokens > 0 then call('HINCRBY', dapo(b.id), why .. '_tokens', int(tokens)) end
end

-- The batch is over: what it has is what it will have.
local function end_batch(b, state)
  set(b, 'state', state)
  set(b, 'ended', NOW)
  call('ZREM', key('batches_live'), b.id)
  -- Its jobs' results are kept for as long as those of others.
  for _, name in ipairs({'dapo_specs', 'dapo_waiting', 'dapo_open', 'dapo_won', 'dapo_names'}) do
    call('PEXPIRE', key(name, b.id), RESULT_TTL + CARRIED)
  end
  for _, name in ipairs({'dapo', 'dapo_prompts', 'batch'}) do call('PEXPIRE', key(name, b.id), ID_TTL) end
  tell_batch(b, state)
end

-- Start prompts while there is room and they are wanted; note when there are none, or when nothing is left to come.
local function refill(b)
  if not live(b) then return end
  while b.live + b.samples <= b.room and wants_more(b) do
    local first = call('ZPOPMIN', key('dapo_waiting', b.id))
    if not first[1] then
      if b.more == 1 and b.state ~= 'waiting_for_prompts' then
        set(b, 'state', 'waiting_for_prompts')
        set(b, 'waiting_since', now)
        tell_batch(b, b.state)
      elseif b.more == 0 and b.open == 0 then
        end_batch(b, 'exhausted')
      end
      return
    end
    start_prompt(b, first[1])
  end
  if b.state == 'waiting_for_prompts' then set(b, 'state', 'filling') end
end

-- How uniform a prompt was lately, as its score stands for it: a logarithm that does not change while the weight decays.
local function remembered(b, name, clock)
  local score = call('ZSCORE', key('uniform', b.memory), name)
  local weight = score and math.exp(tonumber(score) - clock * math.log(2) / HALVED_AFTER) or 0
  return weight >= LEAST_WEIGHT and weight or 0
end

local function remember(b, group, state)
  if not b.memory or b.memory == '' then return end
  local name, memory = call('HGET', key('dapo_names', group.batch), group.prompt), key('uniform', b.memory)
  if not name then return end
  if state == 'won' then
    call('ZREM', memory, name)
  elseif state == 'uniform' then
    local clock = tonumber(call('GET', key('uniform_clock', b.memory)) or 0)
    local weight = remembered(b, name, clock) + 1
    call('ZADD', memory, string.format('%.9g', math.log(weight) + clock * math.log(2) / HALVED_AFTER), name)
    call('ZREMRANGEBYRANK', memory, 0, -1 - MOST_REMEMBERED)
    call('PEXPIRE', memory, ID_TTL)
  end
end

-- Close a group; what still runs of it is not wanted: revoked now, or, with `surplus`, put on that list.
local function close_group(b, group, state, surplus)
  call('HSET', group.key, 'state', state, 'closed', NOW)
  call('PEXPIRE', group.key, ID_TTL)
  call('SREM', key('dapo_open', b.id), group.id)
  local ids = unfinished(group.batch, group.prompt)
  if surplus then
    for _, id in ipairs(ids) do surplus[#surplus + 1] = id end
  else
    revoke(ids)
  end
  weigh_group(b, group.scored, group.mixed, -1)
  add(b, 'open', -1)
  if state == 'won' then
    call('RPUSH', key('dapo_won', b.id), group.id)
    add(b, 'won', 1)
  else
    add(b, state, 1)
    waste(b, state, group.ms, group.tokens)
    if state == 'uniform' then
      local which = group.max <= 0 and 'uniform_0' or group.min >= 1 and 'uniform_1' or 'uniform_between'
      call('HINCRBY', dapo(b.id), which, 1)
    end
  end
  remember(b, group, state)
  tell_batch(b, 'group ' .. group.id .. ' ' .. state)
end

local function load_group(batch, prompt)
  local names = {'owner', 'state', 'scored', 'failed', 'min', 'max', 'oldest', 'ms', 'tokens'}
  local values = call('HMGET', group_key(batch, prompt), unpack(names))
  if not values[1] then return nil end
  local group = {id = batch .. ':' .. prompt, key = group_key(batch, prompt), batch = batch, prompt = prompt}
  for i, name in ipairs(names) do group[name] = i > 2 and values[i] and tonumber(values[i]) or values[i] end
  group.ms, group.tokens = group.ms or 0, group.tokens or 0
  return group
end

local function differs(b, group) return group.min and group.max - group.min > b.spread or false end

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

-- What a group has come to with its samples so far: the state to close it in, or nil.
local function verdict(b, group)
  if group.dropped or b.samples - group.failed < b.min_samples then return 'failed' end
  if b.filter == '1' then
    if group.mixed then
      if b.decided == '1' and group.scored >= b.min_samples then return 'won' end
    elseif b.stop_after > 0 and group.scored >= b.stop_after then
      return 'uniform'
    end
  end
  if group.scored + group.failed < b.samples then return nil end
  return (b.filter ~= '1' or group.mixed) and 'won' or 'uniform'
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
    group.oldest = math.min(group.oldest or math.huge, tonumber(told[5] or math.huge))
    call('HSET', group.key, 'scored', group.scored, 'min', string.format('%.17g', group.min),
      'max', string.format('%.17g', group.max), 'job:' .. told[2], job.id, 'ms', int(group.ms),
      'tokens', int(group.tokens))
    if group.oldest < math.huge then call('HSET', group.key, 'oldest', int(group.oldest)) end
  else
    waste(b, 'failed', ms, tokens)
    if state ~= 'cancelled' and b.policy == 'retry' and tonumber(told[3]) < REDRAWS and live(b) then
      add(b, 'live', 1)
      call('HINCRBY', dapo(b.id), 'redrawn', 1)
      draw(b, job.batch, prompt, told[2], tonumber(told[3]) + 1)
      save(b)
      return
    end
    group.failed = group.failed + 1
    group.dropped = b.policy == 'drop_group'
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

-- Take over the open groups that another batch left, with their finished samples. A group that has all of them counts at
-- once; one that is too old is given up.
local function adopt_groups(b, old, version, staleness)
  call('ZREM', key('batches_left'), old.id)
  set(old, 'adopted_by', b.id)
  for _, id in ipairs(call('SMEMBERS', key('dapo_open', old.id))) do
    local group = load_group(string.match(id, '^(.*):(%d+)$'))
    if group then
      group.mixed = differs(b, group)
      local stale = group.oldest and version and version - group.oldest > staleness
      if stale then
        close_group(old, group, 'revoked')
      else
        call('HSET', group.key, 'owner', b.id)
        call('SREM', key('dapo_open', old.id), id)
        call('SADD', key('dapo_open', b.id), id)
        local ids = unfinished(group.batch, group.prompt)
        add(old, 'open', -1)
        add(old, 'live', -#ids)
        add(b, 'open', 1)
        add(b, 'live', #ids)
        add(b, 'carried', 1)
        weigh_group(b, group.scored, group.mixed, 1)
        for _, job_id in ipairs(ids) do
          local job = load(job_id)
          if job and call('HDEL', job.key, 'parked') == 1 then
            enqueue(job, job.queue)
            born[#born + 1] = {job.stage, job.queue, job.id, job.fence, tonumber(job.prio)}
          end
        end
        local closes = verdict(b, group)
        if closes and live(b) then
          close_group(b, group, closes)
          if b.won == b.target then reach_target(b) end
        end
      end
    end
  end
  save(old)
end
