--[[ Make a batch, without prompts yet, and let it adopt what another left.

arg 1    batch id
arg 2    fingerprint of its body
arg 3    policy version of the weights now, or ''
arg 4    batch to adopt, or ''
arg 5    groups of another batch may be adopted whose oldest sample is so many versions old
arg 6    name of the memory of uniform prompts, or ''
arg 7    id of this operation: a replay answers as the first run did
then     fields of its record and their values: target, samples, room, min_samples, stop_after, spread, policy, on_target,
         decided, filter, prio, level, max, tags, spec (how it was asked for, JSON), idle

Returns 'made', 'exists' (the same body), 'conflict', or 'no such' (of the batch to adopt), 'not left' (it is not over, or
        keeps nothing, or was adopted by
        another), 'differs' (in the number of samples).
Writes   dapo:<batch>, dapo_open:<batch>, dapo_won:<batch>, dapo:<adopted>, group:*, revoked, batches, batches_live,
         uniform_clock:<memory>; for jobs that waited to be adopted what queues them
]]
local id, hash, version, adopt = arg(1), arg(2), tonumber(arg(3)), arg(4)
local known = call('HMGET', dapo(id), 'hash', 'op')
if known[1] then return known[1] ~= hash and 'conflict' or known[2] == arg(7) and 'made' or 'exists' end
local old
if adopt ~= '' then
  old = load_batch(adopt)
  if not old then return 'no such' end
  for i = 8, #ARGV - 4, 2 do
    if arg(i) == 'samples' and tonumber(arg(i + 1)) ~= old.samples then return 'differs' end
  end
  if live(old) or old.on_target ~= 'carry_over' or old.adopted_by then return 'not left' end
end
local record = {'hash', hash, 'state', 'filling', 'more', '1', 'created', NOW, 'memory', arg(6), 'op', arg(7)}
for i = 8, #ARGV - 4 do record[#record + 1] = arg(i) end
call('HSET', dapo(id), unpack(record))
call('ZADD', key('batches'), NOW, id)
call('ZADD', key('batches_live'), NOW, id)
if arg(6) ~= '' then
  call('INCR', key('uniform_clock', arg(6)))
  call('PEXPIRE', key('uniform_clock', arg(6)), ID_TTL)
end
local b = load_batch(id)
if old then adopt_groups(b, old, version, tonumber(arg(5))) end
save(b)
return 'made'
