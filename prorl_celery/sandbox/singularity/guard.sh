# Kills every instance in a keeper's registry, $1, when the keeper is gone, however it went.
#
# Reads until the keeper's end of the pipe closes. Then it looks for a while, since an instance may be just starting.
# A record's pid may by then be another process's, so the process's name is checked.
read -r _
round=0
while [ $round -lt 30 ]; do
  for record in "$1"/instances/*/*/*/*/*.json; do
    [ -f "$record" ] || continue
    pid=$(sed -n 's/^{"pid":\([0-9][0-9]*\),.*/\1/p' "$record")
    read -r name <"/proc/${pid:-none}/comm" || continue
    case $name in appinit | sinit) kill -9 "$pid" ;; esac
  done
  round=$((round + 1))
  sleep 0.1
done
