--[[ Let the jobs of a model, or all, go on; say which weights its backends have from now on.

arg 1  model, or '' for all
arg 2  version of the weights, or '' for the one that they had
arg 3  id of this operation: a replay changes nothing

A version without a model is that of the models that were paused, and of all where all or none were. What is said of
one model leaves a pause of all models standing for the others.

Returns {epoch, pauses that ended, backends whose version was told}
Writes  policy:pauses, policy:epoch, policy:op:<id>, backends
]]
local pauses, backends = key('policy', 'pauses'), key('backends')
local operation = key('policy', 'op', arg(3))
local done = call('GET', operation)
if done then return cjson.decode(done) end
local epoch = call('INCR', key('policy', 'epoch'))
local model, version = arg(1), tonumber(arg(2))
local all = call('HGET', pauses, 'all')
local ended, named = 0, nil
if model ~= '' then
  ended = call('HDEL', pauses, 'model:' .. model)
  if all then
    local pause = cjson.decode(all)
    pause.except = pause.except or {}
    if not pause.except[model] then ended = ended + 1 end
    pause.except[model] = true
    call('HSET', pauses, 'all', cjson.encode(pause))
  end
else
  for _, scope in ipairs(call('HKEYS', pauses)) do
    ended = ended + 1
    named = named or {}
    named[scope] = true
  end
  if all then named = nil end
  call('DEL', pauses)
end
local told = 0
if version then
  local models = {}
  for _, url in ipairs(call('HKEYS', backends)) do
    local record = cjson.decode(call('HGET', backends, url))
    local meant = record.model == model or (model == '' and (not named or named['model:' .. record.model]))
    if meant then
      record.policy_version, record.weights = version, epoch
      call('HSET', backends, url, cjson.encode(record))
      told = told + 1
      models[record.model] = true
    end
  end
  for name in pairs(models) do call('PUBLISH', key('backends'), name) end
end
call('PUBLISH', key('policy'), epoch)
local reply = {epoch, ended, told}
call('SET', operation, cjson.encode(reply), 'PX', 60000)
return reply
