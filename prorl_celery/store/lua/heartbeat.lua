--[[ Renew leases that still exist; a swept one is not revived.

arg 1, 2, 3, 4, ...  fence and job id of each claim

Returns {lost job ids, job ids to be cancelled}
Writes  leases
]]
local leases, cancels, revoked = key('leases'), key('cancels'), key('revoked')
local expiry = int(now + LEASE)
local lost, cancelled = {}, {}
for i = 1, #ARGV - 4, 2 do
  local member = arg(i) .. '|' .. arg(i + 1)
  if call('ZSCORE', leases, member) then
    call('ZADD', leases, 'XX', expiry, member)
    if call('ZSCORE', cancels, arg(i + 1)) or call('ZSCORE', revoked, arg(i + 1)) then
      cancelled[#cancelled + 1] = arg(i + 1)
    end
  else
    lost[#lost + 1] = arg(i + 1)
  end
end
return {lost, cancelled}
