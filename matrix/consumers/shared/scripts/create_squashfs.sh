@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
[ -f "$venv/pyvenv.cfg" ] || fail "there is no environment $venv; create it with \`bash create_venv.sh\`"
command -v mksquashfs >/dev/null || fail "mksquashfs is not on PATH (package squashfs-tools)"
@STOPPABLE@
new=$venv.sqsh.new-$$
trap 'rm -f -- "$new"' EXIT
# The file keeps the rights that the umask gives it. Whoever may read it can read all files in it, whatever their owner.
stoppable mksquashfs "$venv" "$new" -noappend -no-progress -processors 1 -no-xattrs -all-root -action 'chmod(a+rX)@true' ||
    fail "mksquashfs failed (see above); $venv has not changed"
mv -f -- "$new" "$venv.sqsh"
# run.sh uses the directory if it exists, so a half-removed directory must not have this name.
mv -- "$venv" "$new"
trap 'rm -rf -- "$new"' EXIT
printf 'Wrote %s and removed the directory.\n' "$venv.sqsh"
