@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
@ENVIRONMENT@
@CHECKS@
case "$here$venv" in *[:,]*) fail "cannot bind a path with : or , to a container: $here, $venv" ;; esac
for file in @MAIN@ constraints.txt; do
    [ -f "$here/$file" ] || fail "there is no $here/$file; write it with \`matrix env --for venv -o $here\`"
done
[ ! -e "$venv" ] || [ -f "$venv/pyvenv.cfg" ] ||
    fail "$venv exists, but is not an environment; remove it, or set MATRIX_VENV to another path"
files=$temporary/files
mkdir "$files"
cp -- "$here"/@MAIN@ "$files/requirements.txt"
cp -- "$here/constraints.txt" "$files/constraints.txt"
cat > "$files/steps.sh" <<'INSIDE'
@STEPS@
INSIDE
@STOPPABLE@
# An existing environment stays until the new one is complete.
new=$venv.new-$$
old=$venv.old-$$
trap 'rm -rf -- "$temporary" "$new"' EXIT
mkdir -p -- "$new"
binds=(-B "$new:/user-software" -B "$files:/user-software-files:ro"@BIND@)
stoppable "$runtime" exec "${binds[@]}" "$image" sh /user-software-files/steps.sh || {
    [ "$?" -ne @HIDES_CODE@ ] || exit 1 # it said why
    fail "the environment could not be created (see above); an existing environment has not changed"
}
if [ -e "$venv" ]; then
    trap 'rm -rf -- "$temporary"; [ -e "$venv" ] || mv -- "$old" "$venv"; rm -rf -- "$new" "$old"' EXIT
    mv -- "$venv" "$old"
fi
mv -- "$new" "$venv"
printf 'Created %s. Pack it with `bash create_squashfs.sh`.\n' "$venv"
