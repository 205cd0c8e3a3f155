@HEAD@
environment=$here/@MAIN@
update=
if [ "${1:-}" = --update ]; then update=1; shift; fi
target=$(realpath -m -- "${1:-env}")
if [ "$#" -gt 0 ]; then shift; fi
# pip takes packages of ~/.local and PYTHONPATH for installed ones, and its own settings may send them elsewhere.
unset @UNSET@
export PYTHONNOUSERSITE=1
command -v conda-containerize >/dev/null || fail "conda-containerize is not on PATH@LOAD@"
for file in "$environment" "$here/req.txt" "$here/environment.sh"; do
    [ -f "$file" ] || fail "there is no $file"
done
case "$here$target" in *[[:space:]:,]*) fail "tykky cannot use a path with spaces, : or ,: $here, $target" ;; esac
if [ -e "$target" ] || [ -n "$update" ]; then
    [ -f "$target/share/conf.yaml" ] || fail "$target is not an environment of tykky"
fi
@CHECKS@
# An existing environment stays until the new one is complete.
new=$target.new-$$
old=$target.old-$$
finish() {
    [ -e "$target" ] || [ ! -e "$old" ] || mv -- "$old" "$target"
    rm -rf -- "$new"
}
trap finish EXIT
options=(--environ "$here/environment.sh" -r "$here/req.txt" "$@")
if [ -n "$update" ]; then
    installed=$("$target/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$installed" = @PYTHON@ ] ||
        fail "$target has Python $installed, and the lock has @PYTHON@; build it anew, without --update"
    cp -a -- "$target" "$new"
    conda-containerize update "${options[@]}" "$new"
else
    conda-containerize new --prefix "$new" "${options[@]}" "$environment" || {
        status=$?
        echo "build.sh: conda-containerize failed; if it gives no reason, it could not download Miniforge" >&2
        exit "$status"
    }
fi
"$new/bin/python" - <<'CHECK' || differs=1
@CHECK@
CHECK
if [ -n "${differs:-}" ]; then
    fail "the new environment differs from the lock and was removed${update:+; build anew, without --update}"
fi
if [ -e "$target" ]; then mv -- "$target" "$old"; fi
mv -- "$new" "$target"
rm -rf -- "$old"
printf 'Built %s. Use its programs with: export PATH="%s/bin:$PATH"\n' "$target" "$target"
