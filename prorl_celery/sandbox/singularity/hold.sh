# Holds the terminal of an instance: runs the command that enters it, again when that was killed inside.
#
# Given:  $1 pid of the instance's first process, $2 how often it may be entered; then the command.
# Gives:  the command's exit status, once the instance is gone or the command ended in another way.
#
# In an instance the first process is the program's own, and `init.sh` one like any other: `kill -9 -1` by the agent ends
# it. This stands outside, where the agent reaches nothing. The command's last argument, "again", tells the next
# `init.sh` to clear away what is left of its forerunner's.
pid=$1 times=$2
shift 2
# In a subshell, which says nothing of how it ended: the terminal is the agent's.
exec 9>&2 2>/dev/null
(exec "$@" 2>&9 9>&-)
status=$?
while [ $status -eq 137 ] && [ $times -gt 1 ] && [ -e "/proc/$pid/ns/mnt" ]; do
  times=$((times - 1))
  (exec "$@" again 2>&9 9>&-)
  status=$?
done
exit $status
