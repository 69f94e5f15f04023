--[[ Put behind `groups.lua`: how a prompt's samples are drawn, how its group closes, what is remembered of it.

Messages of jobs that are started (`born`) are given to the caller behind the script's own reply.
]]

-- How often a sample is drawn anew after it failed.
local REDRAWS = 2
-- How long what a batch left is kept for another that adopts it, ms.
local CARRIED = 3600000
-- A prompt whose group was uniform is remembered with a weight that is halved with each so many batches, and forgotten
-- below the least.
local HALVED_AFTER, LEAST_WEIGHT, MOST_REMEMBERED = 10, 0.1, 100000

-- Jobs that this script has made; their messages are published by whoever runs it.
local born = {}

-- A sample of a prompt becomes a job. Its request is the prompt's, kept once for all samples.
local function draw(b, batch, prompt, sample, redraw)
  local name = batch .. ':' .. prompt .. ':' .. sample .. (redraw > 0 and ':r' .. redraw or '')
  -- Somebody may have given a job that id, or a batch of the same id has had one that is still remembered.
  local id, other = name, 0
  while call('EXISTS', key('job', id)) == 1 do
    other = other + 1
    id = name .. ':x' .. int(other)
  end
  forget(id)
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
  -- A batch of the same id may have left one that has not expired yet.
  call('DEL', group_key(b.id, prompt), key('members', prompt, b.id))
  call('HSET', group_key(b.id, prompt), 'owner', b.id, 'state', 'open', 'scored', 0, 'failed', 0, 'began', NOW)
  call('SADD', key('dapo_open', b.id), b.id .. ':' .. prompt)
  add(b, 'drawn', 1)
  add(b, 'open', 1)
  add(b, 'live', b.samples)
  weigh_group(b, 0, false, 1)
  for sample = 0, b.samples - 1 do draw(b, b.id, prompt, int(sample), 0) end
end

-- The batch is over: what it has is what it will have.
local function end_batch(b, state)
  set(b, 'state', state)
  set(b, 'ended', NOW)
  tally('batches', state)
  call('ZREM', key('batches_live'), b.id)
  -- Its jobs' results are kept for as long as those of others.
  for _, name in ipairs({'dapo_specs', 'dapo_waiting', 'dapo_open', 'dapo_won', 'dapo_names'}) do
    call('PEXPIRE', key(name, b.id), RESULT_TTL + CARRIED)
  end
  for _, name in ipairs({'dapo', 'dapo_prompts', 'batch'}) do call('PEXPIRE', key(name, b.id), ID_TTL) end
  tell_batch(b, state)
end

-- Start prompts while there is room and they are wanted; note when there are none, or when nothing is left to come.
-- One script starts no more than MOST_BORN jobs and a prompt; true when others are to go on, as each end of a job does.
local MOST_BORN = 32
local function refill(b)
  if not live(b) then return false end
  while b.live + b.samples <= b.room and wants_more(b) do
    if #born >= MOST_BORN then break end
    local first = call('ZPOPMIN', key('dapo_waiting', b.id))
    if not first[1] then
      if b.more == 1 and b.state ~= 'waiting_for_prompts' then
        set(b, 'state', 'waiting_for_prompts')
        set(b, 'waiting_since', now)
        tell_batch(b, b.state)
      elseif b.more == 0 and b.state == 'waiting_for_prompts' then
        set(b, 'state', 'filling')
      end
      if b.more == 0 and b.open == 0 then end_batch(b, 'exhausted') end
      return false
    end
    start_prompt(b, first[1])
  end
  if b.state == 'waiting_for_prompts' then set(b, 'state', 'filling') end
  return #born >= MOST_BORN
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
    -- A clock that began anew under what is remembered would make it count for ever.
    call('PEXPIRE', key('uniform_clock', b.memory), ID_TTL)
  end
end

-- Close a group; what still runs of it is not wanted: revoked now, or, with `surplus`, put on that list.
local function close_group(b, group, state, surplus)
  call('HSET', group.key, 'state', state, 'closed', NOW)
  tally('groups', state)
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
