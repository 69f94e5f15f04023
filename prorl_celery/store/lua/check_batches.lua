--[[ Check batches, their groups and what belongs to them: that they can be read, that they count what there is, that
nothing waits for what will never come.

arg 1         'look' or 'mend'
arg 2, 3, ... names (without the prefix) of keys: dapo*:<batch>, group:<prompt>:<batch>, members:<prompt>:<batch>

Returns {findings {kind, subject, text, mark, name}, messages {stage, queue, id, fence, priority} of jobs that were started}.
Writes  with 'look' nothing; with 'mend' all that belongs to a batch
]]
-- Revoked jobs among which a batch's are counted; with more of them they are not.
local MOST_REVOKED = 5000
local STATES = {filling = true, waiting_for_prompts = true, complete = true, exhausted = true, cancelled = true}
local ALWAYS = {hash = 'lost', created = NOW, samples = '1', target = '1'}
local AT_WORK = {'policy', 'on_target', 'decided', 'filter', 'prio', 'level', 'max', 'memory', 'asked', 'room',
  'min_samples', 'more', 'idle'}
local CLOSED = {won = true, uniform = true, failed = true, revoked = true}
local PARTS = {'dapo_prompts', 'dapo_names', 'dapo_specs', 'dapo_waiting', 'dapo_open', 'dapo_won'}

-- Whether a batch that is over keeps its open groups for another.
local function keeps(b) return b.state == 'complete' and b.on_target == 'carry_over' and not b.adopted_by end

local function lacking(id)
  local state = call('HGET', dapo(id), 'state')
  if not STATES[state or ''] then return 'its state is none' end
  for field in pairs(ALWAYS) do
    if not call('HGET', dapo(id), field) then return 'has no ' .. field end
  end
  local b = load_batch(id)
  if not live(b) and not keeps(b) then return nil end
  for _, field in ipairs(AT_WORK) do
    if call('HEXISTS', dapo(id), field) == 0 then return 'has no ' .. field end
  end
end

-- What cannot be read is over: its jobs are revoked.
local function end_broken(id)
  for field, value in pairs(ALWAYS) do call('HSETNX', dapo(id), field, value) end
  call('HSETNX', dapo(id), 'memory', '')
  call('HSET', dapo(id), 'state', 'cancelled')
  local b = load_batch(id)
  end_batch(b, 'cancelled')
  drop_groups(b)
  save(b)
end

-- Why an open group can't be counted on, or nil.
local function unsound(b, group)
  local fields, samples = call('HKEYS', group.key), 0
  for _, field in ipairs(fields) do
    if string.sub(field, 1, 4) == 'job:' then samples = samples + 1 end
  end
  local alive = call('SCARD', key('members', group.prompt, group.batch))
  if samples ~= group.scored + group.failed then
    return 'counts ' .. int(group.scored + group.failed) .. ' samples that ended, and names ' .. int(samples)
  end
  if samples + alive ~= b.samples then
    return 'has ' .. int(samples) .. ' samples that ended and ' .. int(alive) .. ' that live, of ' .. int(b.samples)
  end
  return group.scored > 0 and not (group.min and group.max) and 'has samples and no rewards' or nil
end

local function give_up(b, group)
  group.mixed = differs(b, group)
  close_group(b, group, 'revoked')
end

-- The batch's jobs of closed groups that have not ended, or nil when they are too many to count.
local function revoked_of(b)
  if call('ZCARD', key('revoked')) > MOST_REVOKED then return nil end
  local count = 0
  for _, id in ipairs(call('ZRANGE', key('revoked'), 0, -1)) do
    local told = call('HMGET', key('job', id), 'batch', 'prompt')
    local group = told[1] and told[2] and load_group(told[1], told[2])
    if group and group.owner == b.id and group.state ~= 'open' then count = count + 1 end
  end
  return count
end

local function check_groups(b)
  for _, id in ipairs(call('SMEMBERS', key('dapo_open', b.id))) do
    local batch, prompt = string.match(id, '^(.*):(%d+)$')
    local group = batch and load_group(batch, prompt)
    if not group or group.owner ~= b.id or group.state ~= 'open' then
      found('stray-group', id, 'is counted as open by ' .. b.id .. ', and is not', '', function()
        call('SREM', key('dapo_open', b.id), id)
      end)
    else
      local why = unsound(b, group)
      if why then found('broken-group', id, why, '', function() give_up(b, group) end) end
    end
  end
end

-- Prompts that can't be started, since their requests are lost. Of those that were, their jobs tell.
local function check_requests(b)
  local specs, lost = key('dapo_specs', b.id), {}
  if call('HLEN', specs) == b.prompts then return end
  for _, prompt in ipairs(call('ZRANGE', key('dapo_waiting', b.id), 0, -1)) do
    if call('HEXISTS', specs, prompt) == 0 then lost[#lost + 1] = prompt end
  end
  if #lost == 0 then return end
  found('lost-prompts', b.id, 'has lost the requests of ' .. #lost .. ' prompts that wait', '', function()
    for _, prompt in ipairs(lost) do call('ZREM', key('dapo_waiting', b.id), prompt) end
  end)
end

-- What the batch should count.
local function recount(b)
  local was = {mixed = b.mixed, hope = b.hope}
  b.mixed, b.hope = 0, 0
  local counted = {open = 0, live = revoked_of(b)}
  for _, id in ipairs(call('SMEMBERS', key('dapo_open', b.id))) do
    local batch, prompt = string.match(id, '^(.*):(%d+)$')
    local group = batch and load_group(batch, prompt)
    if group and group.owner == b.id and group.state == 'open' then
      counted.open = counted.open + 1
      if counted.live then counted.live = counted.live + call('SCARD', key('members', prompt, batch)) end
      weigh_group(b, group.scored, differs(b, group), 1)
    end
  end
  counted.mixed, counted.hope = b.mixed, b.hope
  if live(b) or call('EXISTS', key('dapo_won', b.id)) == 1 then counted.won = call('LLEN', key('dapo_won', b.id)) end
  b.mixed, b.hope = was.mixed, was.hope
  return counted
end

local function check_counts(b)
  local counted, wrong = recount(b), {}
  for name, value in pairs(counted) do
    if math.abs(b[name] - value) > 1e-6 then
      wrong[#wrong + 1] = name .. ' ' .. string.format('%.6g, not %.6g', b[name], value)
    end
  end
  if #wrong == 0 then return end
  table.sort(wrong)
  found('batch-count', b.id, 'counts ' .. table.concat(wrong, '; '), '', function()
    for name, value in pairs(recount(b)) do set(b, name, value) end
  end)
end

local function check_lists(b)
  local function listed(name, score)
    if call('ZSCORE', key(name), b.id) then return end
    found('batch-unlisted', b.id, 'is not among the ' .. name, '', function() call('ZADD', key(name), score, b.id) end)
  end
  listed('batches', call('HGET', dapo(b.id), 'created'))
  if live(b) then listed('batches_live', NOW) end
  if keeps(b) and b.open > 0 then listed('batches_left', int(now + CARRIED)) end
  if not live(b) and not keeps(b) and call('SCARD', key('dapo_open', b.id)) > 0 then
    found('group-left', b.id, 'is over, and has groups that are open', '', function() drop_groups(b) end)
  end
end

local function check_expiry(b)
  for _, part in ipairs({'dapo', unpack(PARTS)}) do
    local left = call('PTTL', key(part, b.id))
    if live(b) and left >= 0 then
      found('expires-early', b.id, 'is being filled, and ' .. part .. ' of it expires', '', function()
        call('PERSIST', key(part, b.id))
      end)
    elseif not live(b) and left == -1 then
      found('no-expiry', b.id, 'is over, and ' .. part .. ' of it would stay for ever', '', function()
        call('PEXPIRE', key(part, b.id), ID_TTL)
      end)
    end
  end
end

local function orphan(name, why)
  found('orphan', key(name), why, '', function() call('DEL', key(name)) end)
end

local CHECKS = {}

function CHECKS.dapo(id)
  local why = lacking(id)
  if why then
    found('broken-batch', id, why, '', function() end_broken(id) end)
    return
  end
  local b = load_batch(id)
  if live(b) then check_requests(b) end
  check_groups(b)
  check_lists(b)
  check_counts(b)
  check_expiry(b)
  if not MENDING or #findings == 0 then return end
  if live(b) and b.won >= b.target then reach_target(b) end
  refill(b)
  save(b)
end

function CHECKS.group(rest)
  local prompt, batch = string.match(rest, '^(%d+):(.*)$')
  local group, id = load_group(batch, prompt), batch .. ':' .. prompt
  local record = key('group', prompt, batch)
  local left = call('PTTL', record)
  if not group or call('EXISTS', dapo(group.owner)) == 0 and left < 0 or not (CLOSED[group.state] or group.state == 'open')
  then
    found('lost-group', id, 'belongs to no batch, or has lost its state', '', function()
      revoke(unfinished(batch, prompt))
      call('DEL', record)
    end)
  elseif group.state == 'open' then
    if call('SISMEMBER', key('dapo_open', group.owner), id) == 0 and call('EXISTS', dapo(group.owner)) == 1 then
      found('lost-group', id, 'is open, and ' .. group.owner .. ' does not know', '', function()
        call('SADD', key('dapo_open', group.owner), id)
      end)
    end
    if left >= 0 then
      found('expires-early', id, 'is open, and expires', '', function() call('PERSIST', record) end)
    end
  elseif left < 0 then
    found('no-expiry', id, 'is closed, and would stay for ever', '', function() call('PEXPIRE', record, ID_TTL) end)
  end
end

function CHECKS.members(rest)
  local prompt, batch = string.match(rest, '^(%d+):(.*)$')
  local group = load_group(batch, prompt)
  for _, id in ipairs(unfinished(batch, prompt)) do
    local told = call('HMGET', key('job', id), 'state', 'batch', 'prompt')
    local alive = (told[1] == 'queued' or told[1] == 'running') and told[2] == batch and told[3] == prompt
    if not alive then
      found('stray-member', id, 'is counted on by the group ' .. batch .. ':' .. prompt .. ', and is no live job of it', '',
        function() call('SREM', key('members', prompt, batch), id) end)
    elseif (not group or group.state ~= 'open') and not call('ZSCORE', key('revoked'), id) then
      found('not-revoked', id, 'lives, and its group is closed or gone', '', function() revoke({id}) end)
    end
  end
end

for _, part in ipairs(PARTS) do
  CHECKS[part] = function(id)
    if call('EXISTS', dapo(id)) == 0 then orphan(part .. ':' .. id, 'belongs to no batch') end
  end
end

for i = 2, #ARGV - 4 do
  about = arg(i)
  local first, rest = string.match(about, '^([^:]+):(.*)$')
  if call('EXISTS', key(about)) == 1 then CHECKS[first](rest) end
end
tell_born()
return {findings, messages}
