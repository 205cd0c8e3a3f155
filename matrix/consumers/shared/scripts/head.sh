#!/usr/bin/env bash
@ABOUT@
set -euo pipefail
shopt -s nullglob
fail() { printf '%s: %s\n' @SCRIPT@ "$*" >&2; exit 3; }
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
