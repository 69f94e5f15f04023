#!/usr/bin/env bash
# Make a container image that holds nothing: folders, links, a passwd. As big as a letter, made in a tenth of a second.
#
#   make_skeleton.sh OUT
#
# Its /usr is empty, by which our singularity sandboxes know that it borrows the machine's, read-only. Good for tests,
# and for tasks that need only what the machine has. Needs Apptainer or Singularity; no root.
set -euo pipefail

out=${1:?usage: make_skeleton.sh OUT}
program=$(command -v singularity || command -v apptainer) || {
  echo "make_skeleton.sh: neither singularity nor apptainer is on the PATH" >&2
  exit 1
}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

mkdir -p "$tree"/{usr,etc,proc,sys,dev,tmp,root,home,run,opt,srv,var/tmp}
for name in bin sbin lib lib64; do
  ln -s "usr/$name" "$tree/$name"
done
printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n' > "$tree/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' > "$tree/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' > "$tree/etc/nsswitch.conf"
touch "$tree"/etc/{hosts,resolv.conf,localtime}
# Programs of the machine's /usr look for these here.
for name in ld.so.cache alternatives ssl; do
  if [[ -e /etc/$name ]]; then
    cp -a --no-preserve=ownership "/etc/$name" "$tree/etc/" 2> /dev/null || true
  fi
done
rm -rf "$tree/etc/ssl/private"

# `build` adds what an instance needs to start.
"$program" -q build --force --sandbox "$out" "$tree"
chmod -R a+rX "$out"
