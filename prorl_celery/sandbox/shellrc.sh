# Set-up of the agent's shell; read by bash from descriptor 9, with __prorl_nonce and __prorl_last set before it.
# Each command is one line (`markers.command_line`):
#   __prorl_id=ID-;\eval $'__prorl_id=ID\012COMMAND' <&247;{ __prorl_end "$?" ID;} 2>&247;[[ -t 2 ]]||__prorl_mend
# The end of a command is a marker on the terminal: \2NONCE:ID:RAN:STATUS:PWD\3NONCE\4. RAN is ID- when eval was not
# run. Where the line was given up half-way (interrupt, failed expansion), or what prints a marker has been taken from
# us (functions, traps, `enable -n`), the prompt is the marker, with an empty RAN.
# Descriptor 247 is /dev/null: opening that for each command would take longer than all the rest.
# 1 and 2 are the terminal again after each command: an `exec >file` is for that command only.
exec 9<&- 247<>/dev/null
set +o history +H
unset HISTFILE PROMPT_COMMAND MAIL MAILPATH MAILCHECK TMOUT
shopt -u checkwinsize
__prorl_end() {
  [[ -t 1 ]] || exec >/dev/tty
  builtin printf "$__prorl_marker" "$2" "${__prorl_id-}" "$1" "${PWD-}" && __prorl_id=
  # These outlive no command: -e would end the shell, -v and -x would talk about the lines above.
  [[ $- != *[evx]* && ${PS1-}${PS2-}${PROMPT_COMMAND[*]-} == "$__prorl_ps1" ]] || __prorl_mend
}
__prorl_mend() {
  exec >/dev/tty 2>&1 247<>/dev/null
  {
    builtin set +evx
    unset -f builtin eval printf
    builtin enable builtin eval printf
    unset PS2 PROMPT_COMMAND
    unset PS1 && PS1=$__prorl_ps1
  } 2>/dev/null
}
__prorl_was() { return "$1"; }
readonly __prorl_nonce
readonly __prorl_marker=$'\002'$__prorl_nonce$':%s:%s:%s:%s\003'$__prorl_nonce$'\004'
readonly __prorl_ps1=$'${__prorl_id:+\002'$__prorl_nonce$':$__prorl_id::$?:${PWD-}\003'$__prorl_nonce$'\004}'
readonly -f __prorl_end __prorl_mend __prorl_was
__prorl_id= PS1=$__prorl_ps1 PS2=
__prorl_end "$__prorl_last" shell
