--[[ Add prompts to a batch, one page of them, and start what there is room for.

arg 1  batch id
arg 2  '1' when more prompts may come, '0' when these are the last, '' when another page follows
then 3 for each prompt: prompt_id, fingerprint, request without a job id (blob)

Returns {'ok', how many were new, 1 when more is to be started by a call without prompts}, {'conflict', prompt_id},
        {'ended', state} (and a prompt is new) or {'unknown'}. The first alone writes.
Writes  dapo:<batch>, dapo_prompts:<batch>, dapo_names:<batch>, dapo_specs:<batch>, dapo_waiting:<batch>; for what starts
        group:*, members:*, job:*, data:*, index:queued:init, queued:*:init, batch:<batch>, queues, seq
]]
local b = load_batch(arg(1))
if not b then return {'unknown'} end
local WIDTH, FIRST = 3, 3
local fresh, here = {}, {}
for i = FIRST, #ARGV - 4, WIDTH do
  local stored = call('HGET', key('dapo_prompts', b.id), arg(i))
  local known = here[arg(i)] or stored and string.match(stored, '^%d+ (.*)$')
  if not known then
    fresh[#fresh + 1] = i
    here[arg(i)] = arg(i + 1)
  elseif known ~= arg(i + 1) then
    return {'conflict', arg(i)}
  end
end
if not live(b) then
  if #fresh > 0 then return {'ended', b.state} end
  return {'ok', 0, 0}
end
local clock = b.memory ~= '' and #fresh > 0 and tonumber(call('GET', key('uniform_clock', b.memory)) or 0)
for _, i in ipairs(fresh) do
  local prompt, name = int(b.prompts), arg(i)
  call('HSET', key('dapo_prompts', b.id), name, prompt .. ' ' .. arg(i + 1))
  call('HSET', key('dapo_names', b.id), prompt, name)
  call('HSET', key('dapo_specs', b.id), prompt, arg(i + 2))
  -- What was uniform lately comes after all others.
  local late = clock and remembered(b, name, clock) * 1e9 or 0
  call('ZADD', key('dapo_waiting', b.id), string.format('%.17g', b.prompts + late), prompt)
  add(b, 'prompts', 1)
end
if arg(2) ~= '' then set(b, 'more', tonumber(arg(2))) end
if b.state == 'waiting_for_prompts' and #fresh > 0 then set(b, 'state', 'filling') end
local unfinished = refill(b)
save(b)
return {'ok', #fresh, unfinished and 1 or 0}
