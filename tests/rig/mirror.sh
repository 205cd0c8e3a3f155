#!/bin/bash
# Print the URL of the Debian mirror in the configuration of this machine's apt.
set -euo pipefail
found=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null || true)
found=$(sort -u <<<"$found" | sed -n '1s/[/ ]*$//p')
if [ -z "$found" ]; then
    echo "apt's sources name no Debian mirror: the rig needs a Debian 12." >&2
    exit 1
fi
echo "$found"
