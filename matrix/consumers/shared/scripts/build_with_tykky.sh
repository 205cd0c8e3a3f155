@HEAD@
requirements=$here/@REQUIREMENTS@
update=
if [ "${1:-}" = --update ]; then update=1; shift; fi
target=$(realpath -m -- "${1:-env}")
if [ "$#" -gt 0 ]; then shift; fi
# pip treats packages in ~/.local and PYTHONPATH as installed, and its settings may name another directory.
unset @UNSET@
export PYTHONNOUSERSITE=1
command -v @PROGRAM@ >/dev/null || fail "@PROGRAM@ is not on PATH@LOAD@"
for file in @GIVEN@ "$requirements" "$here/environment.sh"; do
    [ -f "$file" ] || fail "there is no $file"
done
case "$here$target" in *[[:space:]:,]*) fail "tykky cannot use a path with spaces, : or ,: $here, $target" ;; esac
if [ -e "$target" ] || [ -n "$update" ]; then
    [ -f "$target/share/conf.yaml" ] || fail "$target is not an environment of tykky"
fi
locked=@PYTHON@
@CHECKS@
@STOPPABLE@
@LOGGED@
# An existing environment stays until the new one is complete.
new=$target.new-$$
old=$target.old-$$
# If tykky is killed, it leaves its temporary files. They are removed with this directory.
temporary=${CW_BUILD_TMPDIR:-${TMPDIR:-/tmp}}
mkdir -p -- "$temporary"
@TEMPORARY@
finish() {
    [ -e "$target" ] || [ ! -e "$old" ] || mv -- "$old" "$target"
    rm -rf -- "$new"
    [ -z "${CW_DEBUG_KEEP_FILES+set}" ] || return
    chmod -R u+w -- "$temporary" || :
    rm -rf -- "$temporary"
}
trap finish EXIT
export CW_BUILD_TMPDIR=$temporary
code=0
options=(--environ "$here/environment.sh" "$@")
if [ -n "$update" ]; then
    installed=$("$target/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$installed" = "$locked" ] ||
        fail "$target has Python $installed, and the lock has $locked; build it again, without --update"
    stoppable cp -a -- "$target" "$new" || fail "cannot copy $target (see above)"
    logged @PROGRAM@ update "${options[@]}" -r "$requirements" "$new" || code=$?
else
    logged @PROGRAM@ new --prefix "$new" "${options[@]}" @NEW@ || code=$?
fi
if [ "$code" -ne 0 ]; then
    printf '%s: @PROGRAM@ failed (exit code %s, its messages are above); %s was not changed\n' \
        @SCRIPT@ "$code" "$target" >&2
    free() { df -h --output=avail -- "$1" | tail -n 1 | tr -d ' '; }
    cause=$(causes @GIVEN@ "$requirements")
    if [ -n "$cause" ]; then
        printf 'The cause is probably:\n%s\n' "$cause" >&2
    else
        printf 'If tykky gives no reason, it could not download @DOWNLOADS@. It needs space: %s has %s free, %s has %s.\n' \
            "${temporary%/*}" "$(free "$temporary")" "${target%/*}" "$(free "${target%/*}/")" >&2
    fi
    exit "$code"
fi
"$new/bin/python" - <<'CHECK' || differs=1
@CHECK@
CHECK
if [ -n "${differs:-}" ]; then
    fail "the new environment differs from the lock and was removed${update:+; build again, without --update}"
fi
if [ -e "$target" ]; then mv -- "$target" "$old"; fi
mv -- "$new" "$target"
rm -rf -- "$old"
printf 'Built %s. Use its programs with: export PATH="%s/bin:$PATH"\n' "$target" "$target"
