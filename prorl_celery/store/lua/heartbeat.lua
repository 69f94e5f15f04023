--[[ Renew leases that still exist; a swept one is not revived.

arg 1, 2, 3, ...  of each claim its fence, its job's id, and what of its time was waiting that is nobody's work, ms: ''
                  where that is as it was told before

Returns {lost job ids, job ids to be cancelled}
Writes  leases, job:<id>
]]
local leases, cancels, revoked = key('leases'), key('cancels'), key('revoked')
local expiry = int(now + LEASE)
local lost, cancelled = {}, {}
for i = 1, #ARGV - 4, 3 do
  local member = arg(i) .. '|' .. arg(i + 1)
  if call('ZSCORE', leases, member) then
    call('ZADD', leases, 'XX', expiry, member)
    if arg(i + 2) ~= '' then call('HSET', key('job', arg(i + 1)), 'waited', arg(i + 2)) end
    if call('ZSCORE', cancels, arg(i + 1)) or call('ZSCORE', revoked, arg(i + 1)) then
      cancelled[#cancelled + 1] = arg(i + 1)
    end
  else
    lost[#lost + 1] = arg(i + 1)
  end
end
return {lost, cancelled}
