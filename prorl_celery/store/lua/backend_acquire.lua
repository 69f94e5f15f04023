--[[ Give a job its backend: the one it has while that will do, else the one with the fewest live jobs for its weight.

arg 1  job id
arg 2  fence of the claim
arg 3  model, or '' for the only one that is served
arg 4  'tokens' (the backend must give ids), 'chat' (it must take messages) or '' for any
arg 5  policy version, or '' for any
arg 6  a random integer, by which ties are broken
arg 7, ...  urls that will not do

Returns {'ok', record (JSON)}, {'none'}, {'fenced'} or {'models', each model served...} when '' is not one model.
Writes  job:<id>, assigned:<url>, heap:<model>
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
  if mode == 'tokens' and not record.gives_ids then return nil end
  if mode == 'chat' and record.kind ~= 'vllm' and record.kind ~= 'chat' then return nil end
  if version and record.policy_version ~= version then return nil end
  return text, record
end

if job.held == '1' then
  local text = call('SISMEMBER', key('assigned', job.backend), job.id) == 1 and fitting(job.backend)
  if text then return {'ok', text} end
  release_backend(job)
end

local PAGE = 64
local heap = key('heap', model)
local best, ties, at = nil, {}, 0
repeat
  local page = call('ZRANGE', heap, at, at + PAGE - 1, 'WITHSCORES')
  local over = #page < 2 * PAGE
  for i = 1, #page, 2 do
    if best and page[i + 1] ~= best then
      over = true
      break
    end
    local text, record = fitting(page[i])
    if text then
      best = page[i + 1]
      ties[#ties + 1] = {url = page[i], text = text, weight = record.weight}
    end
  end
  at = at + PAGE
until over
if not best then return {'none'} end

local chosen = ties[random % #ties + 1]
local assigned = key('assigned', chosen.url)
call('SADD', assigned, job.id)
call('ZADD', heap, call('SCARD', assigned) / chosen.weight, chosen.url)
call('HSET', job.key, 'backend', chosen.url, 'held', '1')
return {'ok', chosen.text}
