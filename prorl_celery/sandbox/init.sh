# The first process of a sandbox: keeps the agent's terminal alive and works on files for the worker outside.
#
# Given:  $1 nonce, $2 descriptor of the control channel, $3 working directory, $4 most processes,
#         $5 most data of one process (KiB), $6 what `killall` may reach: "all" where a pid namespace holds
#         nothing but the sandbox, else "terminal", $7 set-up lines of the agent's shell (shellrc.sh).
#         Where there is to be a kernel: $8 its three sockets, $9 Python, ${10} a folder of packages for that or nothing,
#         ${11} how much output of it is kept, ${12} what it runs (kernel/inside.py).
# Gives:  an interactive shell on the controlling terminal, again and again; answers on the control channel.
#
# In a pid namespace of its own this is process 1, which nothing inside can kill. The shell runs under a small loop
# (a process that may be killed, and is then replaced at the next request). It is started with `bash -m`, which makes
# it a process group of its own in the terminal's foreground; without, a shell started later would stop on SIGTTIN.
#
# Requests are lines `ID OPERATION SIZE PATH:ID`, the path in printf %b form; answers are bytes, then NUL ID CODE newline.
# ID is random and fresh, so that no file's contents can end an answer. The second one says that the request is whole:
# who sent it may have died in the midst of it, and another have filled up the line. So does one behind a file's bytes.
# `tend` and `warm` are lines without, and not answered.
nonce=$1 control=$2 work=$3 processes=$4 data_kib=$5 reach=$6 setup=$7 loop_pid=
sockets=$8 python=$9 packages=${10} kept=${11} inside=${12} kernel_pid= kernel_status=new wrote=
[[ $control == 3 ]] || eval "exec 3<&$control $control>&-"
exec 2>/dev/null
umask 022
# How many descriptors a user has on their way through sockets is counted for all his processes, and held against the
# limit of whoever sends one more. Where the keeper is of the same user, its own limit must stay out of the agent's reach.
files=$(ulimit -Hn)
[[ $files != unlimited && $files -lt 65536 ]] || files=65536
ulimit -n $((files / 2))
[[ -d $work ]] || mkdir -p "$work"

# The loop: one interactive shell after another, each told how the one before it ended. A marker (see shellrc.sh) stops
# what is being sent to that one, and what was sent and not read is thrown away: the next would take the second half of a
# command for a command. Without a terminal (its keeper was killed, and there is no namespace to end with) it would spin.
loop='exec 2>/dev/null; status=start
while :; do
  : >/dev/tty || exit
  cd "$2"
  bash --noprofile --noediting --rcfile /dev/fd/9 -i 2>/dev/tty 9<<<"__prorl_nonce=$1 __prorl_last=$status; $3"
  status=$?
  kill -9 %+
  printf "\002%s:0:ended::0::\003%s\004" "$1" "$1"
  ( while read -r -t 0; do read -r -t 0.05 -N 65536; done )
done'

# Limits of what the agent runs.
limit() {
  ulimit -c 0
  [[ $files -lt 8192 ]] || ulimit -Sn 4096
  [[ $data_kib == 0 ]] || ulimit -d "$data_kib"
  [[ $processes == 0 ]] || ulimit -u "$processes"
  # Short of memory, the kernel ends what the agent runs before what holds the sandbox.
  echo 900 >/proc/self/oom_score_adj
}

tend() {
  kill -0 "$loop_pid" && return
  wait "$loop_pid"
  # Whatever the dead loop left would fight over the terminal with the next.
  [[ $reach == all ]] && kill -9 -1
  # A foreground job takes the terminal away from a dead process group and gives it back to this shell.
  set -m; ( : ); set +m
  (
    for fd in $sockets; do eval "exec $fd<&-"; done
    exec 3>&- </dev/tty >/dev/tty 2>&1
    trap - INT QUIT TERM
    limit
    exec bash -m -c "$loop" prorl-shell "$nonce" "$work" "$setup"
  ) &
  loop_pid=$!
}

# Kill what is in the terminal's foreground: the running command, or the shell itself when it runs a builtin.
# "shell" kills the shell as well.
kill_foreground() {
  local pid state rest field own
  read -r rest <"/proc/$loop_pid/stat" || return
  read -r state _ _ _ _ field _ <<<"${rest##*) }"
  # Between two shells the terminal is this process's own group's: outside a pid namespace that could be killed.
  read -r rest <"/proc/$$/stat" || return
  read -r _ _ own _ <<<"${rest##*) }"
  [[ $field -gt 1 && $field != "$loop_pid" && $field != "$own" ]] && kill -9 -- "-$field"
  if [[ $1 == shell ]]; then
    for pid in $(<"/proc/$loop_pid/task/$loop_pid/children"); do kill -9 "$pid"; done
  fi
}

# Start a kernel unless one lives; say how the one before it ended.
start_kernel() {
  [[ -n $sockets ]] || return 38
  if [[ -n $kernel_pid ]]; then
    kill -0 "$kernel_pid" && { printf lives; return; }
    reap_kernel
  fi
  type -P "$python" >/dev/null || return 2
  printf '%s' "$kernel_status"
  (
    exec 3>&- </dev/null >/dev/null
    limit
    cd "$work"
    [[ -z $packages ]] || export PYTHONPATH=$packages PATH="$packages/bin:$PATH"
    # A text's Python looks for modules in the working directory first, where the agent's are.
    exec "$python" -c 'import sys; sys.path[:] = [p for p in sys.path if p]; exec(sys.argv.pop(1))' \
      "$inside" $sockets "$nonce" "$kept"
  ) &
  kernel_pid=$!
}

# Send a signal to the kernel and to what it runs; none is a question whether it lives.
signal_kernel() {
  [[ -n $kernel_pid ]] || return 3
  [[ $1 != 9 ]] || { kill -9 -- "-$kernel_pid" "$kernel_pid"; reap_kernel; return; }
  kill -0 "$kernel_pid" || return 3
  [[ $1 == 0 ]] || kill "-$1" -- "-$kernel_pid" || kill "-$1" "$kernel_pid"
}

reap_kernel() {
  wait "$kernel_pid"
  kernel_status=$? kernel_pid=
}

read_file() {
  [[ -e $1 ]] || return 2
  [[ -d $1 ]] && return 21
  [[ -f $1 ]] || return 22
  [[ -r $1 ]] || return 13
  head -c "$2" <"$1" || return 5
}

write_file() {
  local path=$1 parent temporary whole code=0
  [[ -L $path ]] && path=$(readlink -f -- "$path")
  parent=${path%/*}
  if [[ -d $path ]]; then code=21
  elif [[ -e $path && ! -f $path ]]; then code=22
  elif [[ -e $path && ! -w $path ]]; then code=13
  elif [[ -n $parent && ! -d $parent ]]; then mkdir -p -- "$parent" || code=20
  fi
  temporary=$path.$BASHPID.$RANDOM.part
  if [[ $code == 0 ]]; then
    # `cat` swallows the rest of the bytes when the disk is full, so that the next request is read as one.
    head -c "$2" | { cat >"$temporary" || { code=28; cat >/dev/null; }; exit "$code"; } || code=28
    [[ $code != 0 && ! -w $parent/ ]] && code=13
  else
    head -c "$2" >/dev/null
  fi
  read -r -N "${#id}" whole
  [[ $whole == "$id" || $code != 0 ]] || code=5
  if [[ $code == 0 ]]; then
    [[ -x $path ]] && chmod +x -- "$temporary"
    mv -f -- "$temporary" "$path" || code=5
  fi
  [[ $code == 0 ]] || rm -f -- "$temporary"
  return "$code"
}

list_folder() {
  [[ -e $1 ]] || return 2
  [[ -d $1 ]] || return 20
  [[ -r $1 && -x $1 ]] || return 13
  shopt -s nullglob
  local root=${1%/} entry inner
  for entry in "$root"/*; do
    name "$entry"
    [[ -d $entry && ! -L $entry ]] || continue
    for inner in "$entry"/*; do name "$inner"; done
  done | head -c "$2"
}

name() {
  local slash=
  [[ -d $1 && ! -L $1 ]] && slash=/
  printf '%s%s\0' "${1#"$root"/}" "$slash"
}

tend
while IFS=' ' read -r -u 3 id operation size argument; do
  tend
  code=0
  case $operation in
    tend) continue ;;
    warm) start_kernel >/dev/null; continue ;;
  esac
  [[ $argument == *":$id" ]] || operation=
  printf -v argument '%b' "${argument%":$id"}"
  case $operation in
    ping) ;;
    wrote) printf '%s' "$wrote" >&3 ;;
    interrupt) kill_foreground ;;
    restart) kill_foreground shell ;;
    killall)
      if [[ $reach == all ]]; then kill -9 -1; else kill_foreground shell; kill -9 "$loop_pid"; fi
      tend
      ;;
    kernel) start_kernel >&3; code=$? ;;
    kernel_signal) signal_kernel "$size"; code=$? ;;
    read) ( read_file "$argument" "$size" ) >&3 </dev/null; code=$? ;;
    write) ( write_file "$argument" "$size" ) <&3 >/dev/null; code=$? wrote="$id $code" ;;
    list) ( list_folder "$argument" "$size" ) >&3 </dev/null; code=$? ;;
    *) code=38 ;;
  esac
  printf '\0%s %d\n' "$id" "$code" >&3
done
[[ $reach == all ]] || { signal_kernel 9; kill -9 "$loop_pid"; }
