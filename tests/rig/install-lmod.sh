#!/bin/bash
# Unpacks Debian's Lmod into /opt/lmod, as root, in about 5 s. Debian's package conflicts with environment-modules,
# which the tests need, too, and it would change login shells.
set -euo pipefail
[ ! -e /opt/lmod ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends lua5.3 lua-bit32 lua-filesystem lua-json lua-posix lua-term >/dev/null
apt-get download -qq lmod
dpkg -x lmod_*.deb unpacked
chmod 755 unpacked # mktemp's directory is private
mv unpacked /opt/lmod
