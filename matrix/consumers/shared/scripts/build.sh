@HEAD@
environment=$here/@MAIN@
target=${1:-container.sif}
case "$target" in
    -*) fail "name the container before the options of cotainr: \`bash @SCRIPT@ CONTAINER.sif $*\`" ;;
    /*) ;;
    *) target=./$target ;;
esac
if [ "$#" -gt 0 ]; then shift; fi
[ ! -d "$target" ] || fail "$target is a directory; name a file"
[ -w "$(dirname -- "$target")" ] || fail "$(dirname -- "$target") does not exist, or you may not write to it"
@ENVIRONMENT@
# cotainr calls singularity, and some Apptainers have no command of that name.
if ! command -v singularity >/dev/null; then
    mkdir "$temporary/bin"
    ln -s -- "$runtime" "$temporary/bin/singularity"
    export PATH="$temporary/bin:$PATH"
fi
command -v cotainr >/dev/null || fail "cotainr is not on PATH@LOAD@"
[ -f "$environment" ] || fail "there is no $environment"
@CHECKS@
[ ! "$target" -ef "$image" ] || fail "the container would replace its base image $image"
@STOPPABLE@
@LOGGED@
# An existing container stays until the new one is complete.
new=$target.new-$$
trap 'rm -rf -- "$temporary" "$new"' EXIT
code=0
logged cotainr build "$new" --base-image "$image" --conda-env "$environment" --accept-licenses "$@" || code=$?
if [ "$code" -ne 0 ]; then
    printf '%s: cotainr failed (exit code %s, its messages are above); %s was not changed\n' @SCRIPT@ "$code" "$target" >&2
    cause=$(causes "$environment")
    if [ -n "$cause" ]; then
        printf 'The cause is probably:\n%s\n' "$cause" >&2
    else
        printf 'cotainr needs network access for Miniforge and conda, and space for the unpacked image: %s has %s free.\n' \
            "${temporary%/*}" "$(df -h --output=avail -- "$temporary" | tail -n 1 | tr -d ' ')" >&2
    fi
    exit "$code"
fi
unset SINGULARITY_BIND APPTAINER_BIND
"$runtime" exec "$new" python -s - <<'CHECK'
@CHECK@
CHECK
mv -f -- "$new" "$target"
printf 'Built %s\n' "$target"
