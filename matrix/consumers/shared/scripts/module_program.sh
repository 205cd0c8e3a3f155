#!/usr/bin/env bash
@ABOUT@
# The name of this file is that of the program. To run another program of the container, link this file.
set -euo pipefail
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 3; }
environment=@ENVIRONMENT@
[ -r "$environment" ] || fail "there is no $environment, or you may not read it"
@RUNTIME@
@ISOLATED@
@SITE@
@BINDS@
exec "$runtime" exec ${binds:+-B "$binds"} "$environment" "${MATRIX_PROGRAM:-${0##*/}}" "$@"
