# Set-up of the agent's shell; read by bash from descriptor 9, with __prorl_nonce and __prorl_last set before it.
# A command is one line (`markers.command_line`), and the end of it is the prompt that follows:
#   \eval $'__p_id=ID\012COMMAND' <&247 >&2 2>&1;PS1=$__p_a$?:ID$__p_z PROMPT_COMMAND=()
# A prompt costs a third of what printing the same costs, and every letter of the line counts, hence the names.
# The redirections are undone behind eval, whatever an `exec` in the command did to them; descriptor 247 is /dev/null.
# The prompt says \2NONCE:STATUS:ID:RAN:NOW:FLAGS:PWD\3NONCE\4. RAN is __p_id: another than ID when eval was not run.
# Where the line is given up half-way (an interrupt, some errors) STATUS and ID are those of the line before, and RAN and
# NOW tell. NOW is $? at the prompt: 0, or the second half of the line could not be run. FLAGS are those of `set`.
exec 9<&- 247<>/dev/null
set +o history +H
unset HISTFILE PROMPT_COMMAND MAIL MAILPATH MAILCHECK TMOUT
shopt -u checkwinsize
__p_tidy() {
  # -e would end the shell, -v and -x would talk about our own lines.
  builtin set +evx +o vi +o emacs
  exec 247<>/dev/null
  builtin shopt -s promptvars
  unset -f builtin eval
  builtin enable builtin eval
}
__p_was() { return "$1"; }
readonly __prorl_nonce
readonly __p_a=$'\002'$__prorl_nonce: __p_z=$':$__p_id:$?:$-:${PWD-}\003'$__prorl_nonce$'\004'
readonly -f __p_tidy __p_was
PS1=$__p_a$__prorl_last:shell$__p_z PS2= __p_id=$$
