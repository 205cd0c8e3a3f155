#!/bin/bash
# Installs Apptainer on Debian 12, as root, in about 10 s. Debian 12 does not have Apptainer, and its libc is older
# than the package of Debian sid requires. So the libraries that the package needs are unpacked into a separate
# directory, and its two programs are patched to use them. Any ordinary user can then run images through user
# namespaces, as on an HPC login node.
set -euo pipefail
if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi # or an ordinary user cannot mount a SIF
[ -e /etc/hosts ] || echo "127.0.0.1 localhost" >/etc/hosts # Apptainer needs it; a minimal Debian has none
if command -v apptainer >/dev/null; then
    apptainer --version
    exit 0
fi
here=$(cd "$(dirname "$0")" && pwd)
mirror=$("$here/mirror.sh")
libs=/opt/apptainer-libs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends \
    ca-certificates curl fuse2fs fuse3 patchelf squashfs-tools squashfuse uidmap xz-utils >/dev/null
curl -fsS "$mirror/dists/sid/main/binary-amd64/Packages.xz" | xz -dc >Packages
for name in apptainer libc6 libseccomp2 libsqlite3-0; do
    file=$(awk -v RS= -v name="$name" '$0 ~ "^Package: "name"\n"' Packages | awk '/^Filename:/ {print $2; exit}')
    curl -fsS -o "$name.deb" "$mirror/$file"
done
dpkg -x apptainer.deb /
for name in libc6 libseccomp2 libsqlite3-0; do dpkg -x "$name.deb" "$libs"; done
beside=$libs/usr/lib/x86_64-linux-gnu
for program in /usr/bin/apptainer /usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
    patchelf --set-interpreter "$beside/ld-linux-x86-64.so.2" "$program"
    patchelf --force-rpath --set-rpath "$beside" "$program"
done
if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi # fuse3 may have changed the mode
apptainer --version
