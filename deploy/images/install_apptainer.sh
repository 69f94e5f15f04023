#!/usr/bin/env bash
# Install Apptainer (and its `singularity` command) on Debian 12, where no suite has it.
#
#   install_apptainer.sh [--private-glibc]
#
# Debian unstable has a package, built for a newer C library. This takes that package from the mirror that apt already
# uses, lets its binaries load on Debian 12, and installs the result as an ordinary package. Of the two ways to do that
# the first is taken where it is enough; the flag forces the second:
#
#   retargeting      retarget_glibc.py points the few newer symbols at their older kin. Nothing else comes from unstable
#   a private glibc  unstable's C library, and the libraries that the package names, go with it into a folder of its own,
#                    from which its two programs load them, and no other program does. 7 MB more
#
# Root, about 10 seconds.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
way=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
export DEBIAN_FRONTEND=noninteractive

die() {
  printf 'install_apptainer.sh: %s\n' "$@" >&2
  exit 1
}

if [[ -n $way && $way != --private-glibc ]]; then
  die "usage: install_apptainer.sh [--private-glibc]"
fi
if [[ -z $way ]] && singularity --version 2> /dev/null; then
  exit 0
fi
[[ $(id -u) == 0 ]] || die "run as root"
. /etc/os-release
if [[ ${VERSION_CODENAME:-} != bookworm ]]; then
  die "written for Debian 12 (bookworm); this is ${PRETTY_NAME:-unknown}." \
    "Ubuntu has a PPA (ppa:apptainer/ppa), EPEL a package named apptainer."
fi

apt-get update -qq
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' | awk '$1 == "bookworm" { print $2; exit }')
[[ -n $mirror ]] || die "apt knows no bookworm mirror"

# An apt of its own for unstable, so that the machine's sources stay as they are.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror sid main" > "$work/unstable.list"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
unstable=(
  -qq
  -o "Dir::Etc::SourceList=$work/unstable.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root
)
if ! apt-get "${unstable[@]}" update; then
  # Unstable's index is valid for a week, and a mirror may lag more. It is signed all the same; only how new it is
  # cannot be told.
  echo "install_apptainer.sh: unstable's index could not be taken; trying one that may be out of date" >&2
  unstable+=(-o Acquire::Check-Valid-Until=false)
  apt-get "${unstable[@]}" update
fi
cd "$work"
apt-get "${unstable[@]}" download apptainer
dpkg-deb -R apptainer_*.deb tree
home=$(echo tree/usr/lib/*/apptainer)
programs=(tree/usr/bin/apptainer "$home/bin/starter")

retarget() { # false when a newer package needs more than it can do; the files may then be half done
  cp -a tree retargeted
  if python3 "$here/retarget_glibc.py" "${programs[@]/#tree/retargeted}" "${home/#tree/retargeted}"/lib/*.so; then
    rm -r tree
    mv retargeted tree
    sed -i -E 's/libc6 \(>= [0-9.]+\)/libc6 (>= 2.36)/' tree/DEBIAN/control
  else
    rm -r retargeted
    return 1
  fi
}

private_glibc() {
  local libraries library
  # Its own patchelf, so that none need be installed, and the libraries of unstable that the package depends on.
  apt-get -qq -o APT::Sandbox::User=root download patchelf
  dpkg-deb -x patchelf_*.deb patchelf
  libraries=$(sed -n 's/^Depends: //p' tree/DEBIAN/control | grep -oE '\blib[a-z0-9.+-]+')
  mkdir "$home/glibc" libraries
  for library in $libraries; do
    apt-get "${unstable[@]}" download "$library"
    dpkg-deb -x "$library"_*.deb libraries
  done
  find libraries/usr/lib libraries/lib -maxdepth 2 -name '*.so*' -exec cp -a -t "$home/glibc" {} + 2> /dev/null || true
  local place=${home#tree}/glibc loader
  loader=$(cd "$home/glibc" && ls ld-linux*.so.*)
  # RPATH, not RUNPATH: the libraries must find each other by it, too.
  for program in "${programs[@]}"; do
    patchelf/usr/bin/patchelf --set-interpreter "$place/$loader" "$program"
    patchelf/usr/bin/patchelf --force-rpath --set-rpath "$place" "$program"
  done
  # What is loaded into other programs cannot have a C library of its own; only ext3 images at an offset need it.
  python3 "$here/retarget_glibc.py" "$home"/lib/*.so || echo "install_apptainer.sh: images of ext3 may not mount" >&2
  sed -i -E '/^Depends:/ s/(\blib[a-z0-9.+-]+) \([^)]*\)/\1/g' tree/DEBIAN/control
}

if [[ $way == --private-glibc ]] || ! retarget; then
  private_glibc
fi
sed -i -E 's/^Version: .*/&~bookworm1/' tree/DEBIAN/control
dpkg-deb -b --root-owner-group -Znone tree apptainer-bookworm.deb > /dev/null
apt-get install -y -qq --no-install-recommends --allow-downgrades --reinstall ./apptainer-bookworm.deb squashfuse fakeroot \
  > /dev/null
singularity --version
