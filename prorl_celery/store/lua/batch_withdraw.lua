--[[ Withdraw a prompt: it does not start, or its group ends at once.

arg 1  batch id
arg 2  prompt_id

Returns 'withdrawn', 'closed' (its group has ended, or the batch has), 'unknown' (prompt) or 'no such' (batch).
Writes  dapo:<batch>, dapo_waiting:<batch>, dapo_open:<batch>, group:*, revoked; for what starts in its place as batch_add
]]
local b = load_batch(arg(1))
if not b then return 'no such' end
local stored = call('HGET', key('dapo_prompts', b.id), arg(2))
if not stored then return 'unknown' end
if not live(b) then return 'closed' end
local prompt = string.match(stored, '^%d+')
if call('ZREM', key('dapo_waiting', b.id), prompt) == 0 then
  local group = load_group(b.id, prompt)
  if not group or group.state ~= 'open' then return 'closed' end
  group.mixed = differs(b, group)
  close_group(b, group, 'revoked')
end
call('HINCRBY', dapo(b.id), 'withdrawn', 1)
refill(b)
save(b)
return 'withdrawn'
