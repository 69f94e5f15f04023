--[[ Give a job its backend: the one it has while that will do, else the one with the fewest live jobs for its weight.

arg 1  job id
arg 2  fence of the claim
arg 3  model, or '' for the only one that is served
arg 4  'tokens' (the backend must give ids), 'chat' (it must take messages) or '' for any
arg 5  policy version, or '' for any
arg 6  a random integer, by which ties are broken
arg 7, ...  urls that will not do

Returns {'ok', record (JSON)}, {'none'}, {'fenced'} or {'models', each model served...} when '' is not one model.
Writes  job:<id>, assigned:<url>, heap:<model>, joining:<model>
]]
local job = load(arg(1))
if not holds(job, arg(2)) then return {'fenced'} end
local model, mode, version, random = arg(3), arg(4), tonumber(arg(5)), tonumber(arg(6))
local excluded = {}
for i = 7, #ARGV - 4 do excluded[arg(i)] = true end

if model == '' then
  local names, known = {}, {}
  for _, text in ipairs(call('HVALS', key('backends'))) do
    local name = cjson.decode(text).model
    if not known[name] then known[name] = true; names[#names + 1] = name end
  end
  if #names == 0 then return {'none'} end
  if #names > 1 then
    table.sort(names)
    return {'models', unpack(names)}
  end
  model = names[1]
end

-- The record of a backend that will do for this job.
local function fitting(url)
  if excluded[url] then return nil end
  local text = call('HGET', key('backends'), url)
  if not text then return nil end
  local record = cjson.decode(text)
  if record.model ~= model or record.state == 'down' then return nil end
  if mode == 'tokens' and (not record.gives_ids or record.kind == 'chat') then return nil end
  if mode == 'chat' and record.kind ~= 'vllm' and record.kind ~= 'chat' then return nil end
  if version and record.policy_version ~= version then return nil end
  return text, record
end

if job.held == '1' then
  local text = call('SISMEMBER', key('assigned', job.backend), job.id) == 1 and fitting(job.backend)
  if text then return {'ok', text} end
  release_backend(job)
end

local PAGE, CATCH_UP = 64, 1.5
local heap, joining = key('heap', model), key('joining', model)

-- A backend that joined below the level of the others would be given every job until it is level. It catches up by
-- steps instead: each job that is given out adds to its credit, one and a half times its share of the weight, and each
-- that it gets costs 1. Counted in jobs, this holds for jobs of any length and at any rate.
local credit, level, weights = {}, nil, 0
local joiners = call('HGETALL', joining)
for i = 1, #joiners, 2 do credit[joiners[i]] = tonumber(joiners[i + 1]) end
if #joiners > 0 then
  local weight, score = {}, {}
  local all = call('ZRANGE', heap, 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local url = all[i]
    weight[url] = cjson.decode(call('HGET', key('backends'), url)).weight
    weights, score[url] = weights + weight[url], tonumber(all[i + 1])
    if not credit[url] and not level then level = score[url] end
  end
  for url, has in pairs(credit) do
    if not level or not score[url] or score[url] >= level then
      call('HDEL', joining, url)
      credit[url] = nil
    else
      credit[url] = math.min(2, has + CATCH_UP * weight[url] / weights)
    end
  end
end

local best, ties, spare, at = nil, {}, nil, 0
if job.going_on and job.backend and call('ZSCORE', heap, job.backend) then
  -- It goes on where its cache is warm.
  local text, record = fitting(job.backend)
  if text then best, ties = 'its own', {{url = job.backend, text = text, record = record}} end
end
if not best then repeat
  local page = call('ZRANGE', heap, at, at + PAGE - 1, 'WITHSCORES')
  local over = #page < 2 * PAGE
  for i = 1, #page, 2 do
    if best and page[i + 1] ~= best then
      over = true
      break
    end
    local text, record = fitting(page[i])
    if text then
      local one = {url = page[i], text = text, record = record}
      if credit[page[i]] and credit[page[i]] < 1 then
        spare = spare or one
      else
        best = page[i + 1]
        ties[#ties + 1] = one
      end
    end
  end
  at = at + PAGE
until over end
if not best and not spare then return {'none'} end

local chosen = best and ties[random % #ties + 1] or spare
call('SADD', key('assigned', chosen.url), job.id)
weigh_backend(chosen.record, chosen.url)
call('HSET', job.key, 'backend', chosen.url, 'held', '1')
for url, has in pairs(credit) do
  if url == chosen.url then has = math.max(0, has - 1) end
  call('HSET', joining, url, string.format('%.6f', has))
end
return {'ok', chosen.text}
