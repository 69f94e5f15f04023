#!/usr/bin/env bash
# Install Apptainer (and its `singularity` command) on Debian 12, where no suite has it.
#
# Debian unstable has a package, built for a newer C library. This takes that package from the mirror that apt already
# uses, lets its three binaries load on Debian 12 (retarget_glibc.py says how), and installs the result as an ordinary
# package. Nothing else comes from unstable. Root, about 10 seconds. Exits non-zero when the newest build needs symbols
# that cannot be re-targeted; then use a machine that has Apptainer, or bubblewrap.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
export DEBIAN_FRONTEND=noninteractive

if singularity --version 2>/dev/null; then
  exit 0
fi
if [[ $(id -u) != 0 ]]; then
  echo "install_apptainer.sh: run as root" >&2
  exit 1
fi
. /etc/os-release
if [[ ${VERSION_CODENAME:-} != bookworm ]]; then
  echo "install_apptainer.sh: written for Debian 12 (bookworm); this is ${PRETTY_NAME:-unknown}." >&2
  echo "Ubuntu has a PPA (ppa:apptainer/ppa), EPEL a package named apptainer." >&2
  exit 1
fi

apt-get update -qq
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' | awk '$1 == "bookworm" { print $2; exit }')
if [[ -z $mirror ]]; then
  echo "install_apptainer.sh: apt knows no bookworm mirror" >&2
  exit 1
fi

# An apt of its own for unstable, so that the machine's sources stay as they are.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror sid main" > "$work/unstable.list"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
unstable=(
  -qq
  -o "Dir::Etc::SourceList=$work/unstable.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root
)
apt-get "${unstable[@]}" update
cd "$work"
apt-get "${unstable[@]}" download apptainer

dpkg-deb -R apptainer_*.deb tree
python3 "$here/retarget_glibc.py" \
  tree/usr/bin/apptainer tree/usr/lib/*/apptainer/bin/starter tree/usr/lib/*/apptainer/lib/offsetpreload.so
sed -i -E 's/libc6 \(>= [0-9.]+\)/libc6 (>= 2.36)/; s/^Version: .*/&~bookworm1/' tree/DEBIAN/control
dpkg-deb -b --root-owner-group -Znone tree apptainer-bookworm.deb > /dev/null
apt-get install -y -qq --no-install-recommends --allow-downgrades ./apptainer-bookworm.deb squashfuse fakeroot > /dev/null
singularity --version
