@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
@ENVIRONMENT@
@CHECKS@
case "$here$venv" in *[:,]*) fail "cannot bind a path with : or , to a container: $here, $venv" ;; esac
[ ! -e "$venv" ] || fail "$venv already exists; remove it, or set MATRIX_VENV to another directory"
files=$temporary/files
mkdir "$files"
cp -- "$here"/@MAIN@ "$files/requirements.txt"
cp -- "$here/constraints.txt" "$files/constraints.txt"
cat > "$files/steps.sh" <<'INSIDE'
@STEPS@
INSIDE
mkdir -p -- "$venv"
# An incomplete environment is useless.
trap 'rm -rf -- "$temporary" "$venv"' EXIT
binds=(-B "$venv:/user-software" -B "$files:/user-software-files:ro"@BIND@)
"$runtime" exec "${binds[@]}" "$image" sh /user-software-files/steps.sh
trap 'rm -rf -- "$temporary"' EXIT
printf 'Created %s. Pack it with: bash create_squashfs.sh\n' "$venv"
