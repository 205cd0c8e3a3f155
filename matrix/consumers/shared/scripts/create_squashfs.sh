@HEAD@
venv=${MATRIX_VENV:-$here/matrix-venv}
packed=${1:-$venv.sqsh}
[ -f "$venv/pyvenv.cfg" ] || fail "there is no environment $venv; create it with \`bash create_venv.sh\`"
command -v mksquashfs >/dev/null || fail "mksquashfs is not on PATH (package squashfs-tools)"
@STOPPABLE@
new=$packed.new-$$
trap 'rm -f -- "$new"' EXIT
# Measured: docs/howto/lumi-ai-factory.md#compression. One time for everything makes packing twice give the same bytes.
compression=()
help=$({ mksquashfs -help; mksquashfs -help-all; } 2>&1) || : # it fails although it prints the help
case $help in *zstd*) compression=(-comp zstd) ;; esac
export SOURCE_DATE_EPOCH=@EPOCH@
# The file keeps the rights that the umask gives it. Whoever may read it can read all files in it, whatever their owner.
stoppable mksquashfs "$venv" "$new" -noappend -no-progress "${compression[@]}" -b 1048576 -processors 1 -no-xattrs -all-root -action 'chmod(a+rX)@true' ||
    fail "mksquashfs failed (see above); $venv has not changed"
mv -f -- "$new" "$packed"
# run.sh uses the directory if it exists, so a half-removed directory must not have this name.
mv -- "$venv" "$new"
trap 'rm -rf -- "$new"' EXIT
printf 'Wrote %s and removed the directory.\n' "$packed"
