@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
[ -f "$venv/pyvenv.cfg" ] || fail "there is no environment $venv: bash create_venv.sh makes it"
command -v mksquashfs >/dev/null || fail "mksquashfs is not on PATH (package squashfs-tools)"
half=$venv.sqsh.$$
trap 'rm -f -- "$half"' EXIT
mksquashfs "$venv" "$half" -noappend -no-progress -processors 1 -no-xattrs
mv -f -- "$half" "$venv.sqsh"
rm -rf -- "$venv"
printf 'Made %s, and removed the directory.\n' "$venv.sqsh"
