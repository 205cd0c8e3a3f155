@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
layer=${here%.files} # of `matrix build-layer`
if [ -z "${MATRIX_VENV:-}" ] && [ "$layer" != "$here" ] && [ -f "$layer" ]; then venv=$layer; fi
[ "$#" -gt 0 ] || fail "name a command to run"
@RUNTIME@
@CHECKS@
# If both exist, the directory is newer, because packing removes it.
if [ -f "$venv/pyvenv.cfg" ]; then
    bind=$venv:/user-software
elif [ -f "$venv" ]; then
    bind=$venv:/user-software:image-src=/,ro
elif [ -f "$venv.sqsh" ]; then
    bind=$venv.sqsh:/user-software:image-src=/,ro
else
    fail "there is neither $venv.sqsh nor $venv; create it with \`bash create_venv.sh\`"
fi
@ISOLATED@
export SINGULARITYENV_PREPEND_PATH=/user-software/bin APPTAINERENV_PREPEND_PATH=/user-software/bin
@SITE@
@BINDS@
exec "$runtime" exec ${binds:+-B "$binds"} -B "$bind" "$image" "$@"
