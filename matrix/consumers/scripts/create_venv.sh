@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
@UNSET@
@CHECKS@
case "$here$venv" in *[:,]*) fail "a path with : or , cannot be bound: $here, $venv" ;; esac
[ ! -e "$venv" ] || fail "$venv is there already: remove it, or name another with MATRIX_VENV=DIR"
files=$(mktemp -d)
trap 'rm -rf -- "$files"' EXIT
cp -- "$here"/@MAIN@ "$files/requirements.txt"
cp -- "$here/constraints.txt" "$files/constraints.txt"
cat > "$files/steps.sh" <<'INSIDE'
@STEPS@
INSIDE
mkdir -p -- "$venv"
# What is half made is of no use.
trap 'rm -rf -- "$files" "$venv"' EXIT
binds=(-B "$venv:/user-software" -B "$files:/user-software-files:ro"@BIND@)
"$runtime" exec "${binds[@]}" "$image" sh /user-software-files/steps.sh
trap 'rm -rf -- "$files"' EXIT
printf 'Made %s. Pack it with: bash create_squashfs.sh\n' "$venv"
