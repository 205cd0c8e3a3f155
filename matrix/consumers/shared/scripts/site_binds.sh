# The present directory, a virtual environment, and file systems of the site: a container sees none without a bind.
binds=${PWD%/}
if [ -d "${VIRTUAL_ENV:-}" ]; then binds=${binds:+$binds,}$VIRTUAL_ENV; fi
@LOOP@
