--[[ Cancel a batch: no prompt of it starts any more, its jobs are revoked. One that has ended stays as it is, but for what
it keeps to be carried over.

arg 1  batch id

Returns 'cancelled', 'dropped' (what it kept), 'ended' (nothing was left of it) or 'unknown'.
Writes  dapo:<batch>, dapo_open:<batch>, group:*, revoked, batches_live
]]
local b = load_batch(arg(1))
if not b then return 'unknown' end
local was_live = live(b)
local open = call('SCARD', key('dapo_open', b.id))
if was_live then end_batch(b, 'cancelled') end
if not was_live and (b.adopted_by or open == 0) then return 'ended' end
drop_groups(b)
save(b)
return was_live and 'cancelled' or 'dropped'
