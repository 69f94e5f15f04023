# Set-up of the agent's shell; read by bash from descriptor 9, with __prorl_nonce and __prorl_last set before it.
# Each command is one line: `__prorl_id=ID;eval $'...' </dev/null >/dev/tty 2>&1;{ __prorl_end $? ID; } 2>/dev/null`.
# The end of a command is a marker on the terminal: \2NONCE:ID:STATUS:PWD\3NONCE\4. It comes from the line itself, or
# from the prompt when the line was given up (interrupt, failed expansion, syntax error).
exec 9<&-
set +o history +H
unset HISTFILE PROMPT_COMMAND MAIL MAILPATH
shopt -u checkwinsize
__prorl_end() {
  builtin printf '\002%s:%s:%s:%s\003%s\004' "$__prorl_nonce" "$2" "$1" "$PWD" "$__prorl_nonce"
  __prorl_id=
  # These outlive no command: -e would end the shell, -v and -x would talk about the lines above.
  set +evx
  PS1= PS2= PROMPT_COMMAND=__prorl_prompt
}
__prorl_prompt() { local status=$?; [[ -z ${__prorl_id-} ]] || __prorl_end "$status" "$__prorl_id" >/dev/tty; }
readonly __prorl_nonce
readonly -f __prorl_end __prorl_prompt
PS1= PS2= __prorl_id= PROMPT_COMMAND='__prorl_end "$__prorl_last" shell'
