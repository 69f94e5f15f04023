--[[ Check jobs: that a record can be read, that it stands where it says it does, that its data are there and expire.

arg 1         'look' or 'mend'
arg 2, 3, ... job ids

Returns {findings {kind, subject, text, mark, job}, messages {stage, queue, id, fence, priority} of jobs that were mended}.
Writes  with 'look' nothing; with 'mend' all that belongs to a job
]]
local LIVE = {queued = true, running = true}
local ENDED = {completed = true, failed = true, cancelled = true, timed_out = true}
local STAGES = {init = true, rollout = true, eval = true}
local LEVELS = {['0'] = true, ['3'] = true, ['6'] = true, ['9'] = true}
local NUMBERS = {'fence', 'attempt', 'max', 'prio', 'seq', 'since', 'rf', 'log'}
local PARTS = {data = 'hash', turns = 'list', events = 'list'}
local ALL = {'job', 'data', 'turns', 'events'}

-- Set what cannot be read anew; a job that may not have ended ends as failed.
local function rebuild(id)
  local record = key('job', id)
  if not call('HGET', record, 'hash') then
    call('DEL', record, key('data', id), key('turns', id), key('events', id))
    return
  end
  local function sound(field, ok, value)
    local has = call('HGET', record, field)
    if not has or not ok(has) then call('HSET', record, field, value) end
  end
  for _, field in ipairs(NUMBERS) do
    local value = '0'
    if field == 'seq' then value = int(call('INCR', key('seq'))) end
    if field == 'since' then value = NOW end
    if field == 'attempt' or field == 'max' then value = '1' end
    sound(field, tonumber, value)
  end
  local sample = call('HMGET', record, 'prompt', 'sample', 'redraw', 'batch')
  if not (sample[1] and sample[2] and sample[3] and sample[4]) then call('HDEL', record, 'prompt') end
  sound('created', tonumber, NOW)
  sound('stage', function(stage) return STAGES[stage] end, 'init')
  sound('level', function(level) return LEVELS[level] end, '9')
  local state = call('HGET', record, 'state')
  if ENDED[state] then
    sound('finished', tonumber, NOW)
    sound('reason', function() return true end, 'error')
    return
  end
  if not LIVE[state] then call('HSET', record, 'state', 'queued') end
  end_as_lost(load(id), 'its record was damaged')
end

local function broken(job, kept)
  if not kept.hash then return 'has no fingerprint' end
  if not tonumber(kept.created) then return 'has no time of creation' end
  for _, field in ipairs(NUMBERS) do
    if not tonumber(job[field]) then return 'its ' .. field .. ' is no number' end
  end
  if not STAGES[job.stage] then return 'its stage is none' end
  if not LEVELS[job.level] then return 'its level is none' end
  if ENDED[job.state] then
    return not (tonumber(kept.finished) and kept.reason) and 'does not say when or how it ended' or nil
  end
  local sample = call('HMGET', job.key, 'prompt', 'sample', 'redraw', 'parked')
  if (sample[1] or sample[2] or sample[3] or sample[4]) and not (job.batch and sample[1] and sample[2] and sample[3]) then
    return 'does not say whose sample it is'
  end
  return not LIVE[job.state] and 'its state is none' or nil
end

local function check_queued(job, note)
  if call('HEXISTS', job.key, 'parked') == 1 then return end
  if not job.queue then
    note('not-queued', 'waits, and in no queue', begin_again)
    return
  end
  local lane = key('queued', job.level, job.queue)
  if not call('ZSCORE', lane, job.id) then
    note('not-queued', 'waits, but is not of those that wait in ' .. job.queue, function(job)
      enqueue(job, job.queue)
      return {job.stage, job.queue, job.id, job.fence, tonumber(job.prio)}
    end)
  end
  if call('SISMEMBER', key('queues'), job.queue) == 0 then
    note('queue-unlisted', 'waits in ' .. job.queue .. ', which no sweep looks at', function(job)
      call('SADD', key('queues'), job.queue)
    end)
  end
end

local function check_running(job, note)
  if not call('ZSCORE', key('leases'), lease(job)) then
    note('no-lease', 'runs without a lease: nobody would notice the loss of its worker', function(job)
      call('ZADD', key('leases'), int(now + LEASE), lease(job))
    end)
  end
  if job.cancel and not call('ZSCORE', key('cancels'), job.id) then
    note('cancel-unlisted', 'was cancelled, and no sweep would see to it', function(job)
      call('ZADD', key('cancels'), tonumber(job.cancel) or NOW, job.id)
    end)
  end
  if job.stall and (not pcall(cjson.decode, job.stall) or call('HEXISTS', job.key, 'node') == 0) then
    note('stray-stall', 'stalls, and does not say where or at what', unstall)
  elseif job.stall and not call('ZSCORE', key('stalled'), job.id) then
    note('stall-unlisted', 'stalls, and is not among those that do', function(job)
      local known, stall = pcall(cjson.decode, job.stall)
      call('ZADD', key('stalled'), known and tonumber(stall.since) or NOW, job.id)
    end)
  end
end

-- The log has an entry for each turn, and more for the calls of turns.
local function check_turns(job, note)
  local entries, counted = call('LLEN', key('turns', job.id)), tonumber(job.nturns or 0) or -1
  if entries >= counted and (entries == 0) == (counted == 0) then return end
  note('turn-count', 'counts ' .. (job.nturns or 'no') .. ' turns, and its log has ' .. entries .. ' entries', function(job)
    local used = LIVE[job.state] and job.stage ~= 'init' and job.log == job.rf
    call('DEL', key('turns', job.id))
    call('HDEL', job.key, 'nturns', 'turn_bytes', 'calls', 'open')
    call('HSET', job.key, 'log', '0')
    job.nturns, job.log = false, '0'
    if used then return begin_again(job) end
  end)
end

local function check_data(job, note)
  local data = key('data', job.id)
  if call('HEXISTS', data, 'spec') == 0 then
    note('no-request', 'has lost its request', function(job) end_as_lost(job, 'its request was lost from the store') end)
    return
  end
  local lacks = job.stage ~= 'init' and call('HEXISTS', data, 'init') == 0 and 'init'
    or job.stage == 'eval' and call('HEXISTS', data, 'rollout') == 0 and 'rollout'
  if lacks then
    note('no-output', 'is in ' .. job.stage .. ' and has lost what ' .. lacks .. ' returned', begin_again)
  end
end

local function check_live(job, note)
  local where = job.on or ''
  if where ~= '' and call('SISMEMBER', key('on', where), job.id) == 0 then
    note('not-placed', 'is on node ' .. where .. ', whose set lacks it: its sandboxes would be ended', function(job)
      call('SADD', key('on', where), job.id)
    end)
  end
  if job.held == '1' then
    local registered = call('HEXISTS', key('backends'), job.backend or '') == 1
    if job.state ~= 'running' or not job.backend then
      note('backend-held', 'holds a backend and does not run, or does not say which', give_back)
    elseif registered and call('SISMEMBER', key('assigned', job.backend), job.id) == 0 then
      note('not-assigned', 'uses ' .. job.backend .. ', which does not count it', function(job)
        call('SADD', key('assigned', job.backend), job.id)
        local record = cjson.decode(call('HGET', key('backends'), job.backend))
        weigh_backend(record, job.backend)
      end)
    end
  end
  for _, part in ipairs(ALL) do
    if call('PTTL', key(part, job.id)) >= 0 then
      note('expires-early', 'has not ended, and ' .. part .. ' of it expires', function(job)
        call('PERSIST', key(part, job.id))
      end)
    end
  end
  if job.state == 'queued' then check_queued(job, note) else check_running(job, note) end
  check_turns(job, note)
  check_data(job, note)
  local told = call('HMGET', job.key, 'prompt', 'parked')
  if told[1] then check_sample(job, told, note) end
end

-- A place in the results stream, "<ms>-<number>", as text that sorts.
local function place_in_stream(entry)
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  return string.format('%020.0f-%020.0f', ms or 0, number or 0)
end

-- The results stream has the job's entry, unless it was cut off the stream's old end.
local function check_told(job, note, entry)
  local cut = call('GET', key('results', 'trimmed')) or '0-0'
  local stream = key('results')
  if string.match(entry, '^%d+-%d+$') then
    if place_in_stream(entry) <= place_in_stream(cut) then return end
    local there = call('XRANGE', stream, entry, entry)[1]
    if there and there[2][2] == job.id then return end
  end
  note('not-told', 'has ended, and no reader of the results hears of it', function(job)
    local fields = {'job', job.id}
    if job.batch then fields[3], fields[4] = 'batch', job.batch end
    if job.tags then fields[#fields + 1] = 'tags'; fields[#fields + 1] = job.tags end
    call('HSET', job.key, 'entry', call('XADD', stream, '*', unpack(fields)))
  end)
end

local function check_ended(job, note, kept)
  local finished = tonumber(kept.finished)
  local expires = tonumber(call('ZSCORE', key('expiry'), job.id))
  if not expires then
    note('not-expiring', 'has ended, and its result would stay for ever', function(job)
      call('ZADD', key('expiry'), int(finished + RESULT_TTL), job.id)
    end)
  elseif expires > now then
    if call('HEXISTS', key('data', job.id), 'spec') == 0 then
      note('no-request', 'has ended, and its result is gone before its time', function(job)
        call('ZADD', key('expiry'), NOW, job.id)
      end)
    end
    check_told(job, note, kept.entry or '')
  end
  for _, part in ipairs(ALL) do
    if call('PTTL', key(part, job.id)) == -1 then
      note('no-expiry', 'has ended, and ' .. part .. ' of it would stay for ever', function(job)
        call('PEXPIRE', key(part, job.id), part == 'job' and ID_TTL or RESULT_TTL)
      end)
    end
  end
  check_turns(job, note)
  if (job.on or '') ~= '' then
    note('still-placed', 'has ended and is still on node ' .. job.on, function(job) place(job, '') end)
  end
  local tries = math.max(tonumber(job.attempt), tonumber(kept.evals or '') or 0)
  if job.state == 'failed' and tries >= tonumber(job.max) and not call('ZSCORE', key('dead'), job.id)
    and string.find(kept.error or '', '"retryable":true', 1, true) then
    note('not-dead', 'has used its attempts up, and is not among the dead letters', function(job)
      call('ZADD', key('dead'), int(finished), job.id)
    end)
  end
  if job.held == '1' then
    note('backend-held', 'has ended and still holds a backend', give_back)
  end
end

local function orphans(id, why)
  for part in pairs(PARTS) do
    local name = key(part, id)
    if call('EXISTS', name) == 1 then found('orphan', name, why, '', function() call('DEL', name) end) end
  end
end

local function check_tombstone(id)
  if call('PTTL', key('job', id)) < 0 then
    found('no-expiry', id, 'what is left of it would stay for ever', '', function()
      call('PEXPIRE', key('job', id), ID_TTL)
    end)
  end
  orphans(id, 'belongs to a job that was purged')
end

local function check(id)
  local job = load(id)
  local values = call('HMGET', key('job', id), 'hash', 'created', 'finished', 'reason', 'error', 'entry', 'gone',
    'evals')
  local kept = {hash = values[1], created = values[2], finished = values[3], reason = values[4], error = values[5],
    entry = values[6], evals = values[8]}
  if values[7] == '1' then return check_tombstone(id) end
  if not job and call('EXISTS', key('job', id)) == 0 then return orphans(id, 'belongs to no job') end
  local why = job and broken(job, kept) or not job and 'has no fence'
  if why then
    found('broken-record', id, why, '', function() rebuild(id) end)
    return
  end
  local function note(kind, text, mend)
    found(kind, id, text, int(job.fence), function()
      local as_is = load(id) -- an earlier mend may have done more than its own
      if as_is and as_is.fence == job.fence and as_is.state == job.state then return mend(as_is) end
    end)
  end
  local score = call('ZSCORE', index(job), id)
  if not score or tonumber(score) ~= tonumber(job.seq) then
    note('not-indexed', 'is not where lists of ' .. job.state .. ' jobs would find it', function(job)
      call('ZADD', index(job), job.seq, id)
    end)
  end
  if job.batch and not call('ZSCORE', key('batch', job.batch), id) then
    note('not-in-batch', 'is not among the jobs of its batch ' .. job.batch, function(job)
      call('ZADD', key('batch', job.batch), job.seq, id)
    end)
  end
  if LIVE[job.state] then check_live(job, note) else check_ended(job, note, kept) end
end

-- A key of another type stops the look at its job; that it is one is all that can be said.
local function wrong_types(id)
  for _, part in ipairs(ALL) do
    local name = key(part, id)
    local has = call('TYPE', name).ok
    if has ~= 'none' and has ~= (PARTS[part] or 'hash') then
      found('wrong-type', name, 'is a ' .. has, '', function() call('DEL', name) end)
    end
  end
end

for i = 2, #ARGV - 4 do
  about = arg(i)
  local before = #findings
  local went, why = pcall(check, about)
  if not went then
    for j = #findings, before + 1, -1 do findings[j] = nil end
    wrong_types(about)
    if #findings == before then error(why) end
  end
end
tell_born()
return {findings, messages}
