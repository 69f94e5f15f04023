--[[ Put behind `lib.lua`: the records and counters of batches and of their groups. `filling.lua`, how groups start and
close, and `carrying.lua`, how a batch ends and what the next takes over, follow. No other process decides.

    batch    dapo:<batch>              how many groups are wanted, how they are judged, how far it has come
    group    group:<prompt>:<batch>    the samples of one prompt: its jobs are named <batch>:<prompt>:<sample>

A group is named by the batch that drew it; its `owner` is the batch that counts it, another where that adopted it.
]]

-- How many groups that may be won are kept in flight for each one that is missing. With less the last groups are
-- waited for longer; with more, more is thrown away (see `prorl bench dapo`).
local AHEAD = 3

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
local function tell_batch(b, what) call('PUBLISH', key('event', 'batch ' .. b.id), what) end

local function load_group(batch, prompt)
  local names = {'owner', 'state', 'scored', 'failed', 'min', 'max', 'oldest', 'ms', 'tokens'}
  local values = call('HMGET', group_key(batch, prompt), unpack(names))
  if not values[1] then return nil end
  local group = {id = batch .. ':' .. prompt, key = group_key(batch, prompt), batch = batch, prompt = prompt}
  for i, name in ipairs(names) do
    group[name] = values[i]
    if i > 2 then group[name] = values[i] and tonumber(values[i]) or nil end
  end
  group.scored, group.failed = group.scored or 0, group.failed or 0
  group.ms, group.tokens = group.ms or 0, group.tokens or 0
  return group
end

local function differs(b, group) return group.min and group.max and group.max - group.min > b.spread or false end

-- The jobs of a group that have not ended.
local function unfinished(batch, prompt)
  return call('SMEMBERS', key('members', prompt, batch))
end

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

-- What an open group is worth to the batch: one that has a difference is won, another the less likely so the more of
-- its samples are alike.
local function weigh_group(b, scored, spread, sign)
  if b.filter == '1' and spread then
    add(b, 'mixed', sign)
  else
    add(b, 'hope', sign * (b.filter == '1' and 1 / (1 + scored) or 1))
  end
end

-- Note what was spent on what is thrown away.
local function waste(b, why, ms, tokens)
  if ms > 0 then
    call('HINCRBY', dapo(b.id), why .. '_ms', int(ms))
    tally_many(int(ms), 'waste_ms', why)
  end
  if tokens > 0 then
    call('HINCRBY', dapo(b.id), why .. '_tokens', int(tokens))
    tally_many(int(tokens), 'waste_tokens', why)
  end
end

-- What a group has come to with its samples so far: the state to close it in, or nil.
local function verdict(b, group)
  local dropped = b.policy == 'drop_group' and group.failed > 0
  if dropped or b.samples - group.failed < b.min_samples then return 'failed' end
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

-- Whether those in flight are too few for what is missing.
local function wants_more(b)
  local closed = b.won + b.uniform + b.failed
  local rate = (b.won + 1) / (closed + (b.filter == '1' and 2 or 1))
  return b.mixed + rate * b.hope < (b.filter == '1' and AHEAD or 1) * (b.target - b.won) - 1e-6
end
