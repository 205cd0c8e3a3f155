@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
[ -f "$venv/pyvenv.cfg" ] || fail "there is no environment $venv; create it with: bash create_venv.sh"
command -v mksquashfs >/dev/null || fail "mksquashfs is not on PATH (package squashfs-tools)"
new=$venv.sqsh.$$
trap 'rm -f -- "$new"' EXIT
mksquashfs "$venv" "$new" -noappend -no-progress -processors 1 -no-xattrs
mv -f -- "$new" "$venv.sqsh"
rm -rf -- "$venv"
printf 'Wrote %s and removed the directory.\n' "$venv.sqsh"
