--[[ Put behind the library, in front of the scripts that check (`check_*`).

Such a script looks at one page of things in one step, so that it never sees half of a change. Its first argument is
'look', which writes nothing, or 'mend', which puts right what it finds in the same step.
]]
local MENDING = arg(1) == 'mend'
local findings, messages = {}, {}
local about = '' -- what is looked at: a second look asks for it by this

-- Note a finding: its kind, its subject, what is wrong in words. `mark` is another when the subject has changed since.
local function found(kind, subject, text, mark, mend)
  findings[#findings + 1] = {kind, subject, text, mark, about}
  if not MENDING then return end
  local message = mend()
  if type(message) == 'table' then messages[#messages + 1] = message end
end
