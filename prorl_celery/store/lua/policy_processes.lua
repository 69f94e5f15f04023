--[[ What the processes that make model calls told last.

Returns {the epoch, what each told (JSON) ...}; processes that have been silent for too long are not among them.
Writes  nothing
]]
local told = {tonumber(call('GET', key('policy', 'epoch')) or 0)}
for _, value in ipairs(call('HVALS', key('policy', 'processes'))) do
  local believed, text = string.match(value, '^(%d+) (.*)$')
  if tonumber(believed) > now then told[#told + 1] = text end
end
return told
