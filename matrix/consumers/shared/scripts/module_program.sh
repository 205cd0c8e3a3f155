#!/usr/bin/env bash
@ABOUT@
# The name of this file is that of the program. To run another program of the container, link this file.
set -euo pipefail
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 3; }
environment=@ENVIRONMENT@
[ -r "$environment" ] || fail "there is no $environment, or you may not read it"
@RUNTIME@
# Packages of ~/.local and PYTHONPATH of this machine would be used instead of the container's.
unset PYTHONPATH PYTHONHOME
export SINGULARITYENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONNOUSERSITE=1
@SITE@
# The present directory is bound, as the site's modules may not bind it.
exec "$runtime" exec -B "$PWD" "$environment" "${0##*/}" "$@"
