@HEAD@
environment=${MATRIX_ENVIRONMENT:-@ENVIRONMENT@}
target=$(realpath -m -- "${1:-wrapped}")
if [ "$#" -gt 0 ]; then shift; fi
# With these variables, tykky's container would lack its directories or get another Python.
unset @UNSET@
[ -e "$environment" ] || fail "there is no $environment; set MATRIX_ENVIRONMENT=PATH"
environment=$(realpath -- "$environment")
[ -f "$here/environment.sh" ] || fail "there is no $here/environment.sh"
case "$here$target$environment" in
    *[[:space:]:,]*) fail "tykky cannot use a path with spaces, : or ,: $here, $target, $environment" ;;
esac
[ ! -e "$target" ] || [ -f "$target/share/conf.yaml" ] || fail "$target is not an environment of tykky"
case "$environment" in
    *.sif)
        tool=wrap-container
        options=()
        @RUNTIME@
        programs=$("$runtime" exec "$environment" sh -c 'dirname "$(command -v python)"') || programs=.
        [ "$programs" != . ] || fail "$environment has no python on PATH, or does not start (see above)"
        ;;
    *)
        tool=wrap-install
        # The files keep their path.
        options=(--mask)
        programs=bin
        [ -x "$environment/bin/python" ] || fail "$environment has no bin/python"
        ;;
esac
command -v "$tool" >/dev/null || fail "$tool is not on PATH@LOAD@"
@STOPPABLE@
# An existing environment stays until the new one is complete.
new=$target.new-$$
old=$target.old-$$
finish() {
    [ -e "$target" ] || [ ! -e "$old" ] || mv -- "$old" "$target"
    rm -rf -- "$new"
}
trap finish EXIT
stoppable "$tool" --environ "$here/environment.sh" --wrapper-paths "$programs" --prefix "$new" "${options[@]}" "$@" \
    "$environment" || fail "$tool failed (see above); $target was not changed"
"$new/bin/python" -c '' || fail "the Python of the new environment does not start (see above); it was removed"
if [ -e "$target" ]; then mv -- "$target" "$old"; fi
mv -- "$new" "$target"
rm -rf -- "$old"
printf 'Wrapped %s. Use its programs with: export PATH="%s/bin:$PATH"\n' "$environment" "$target"
