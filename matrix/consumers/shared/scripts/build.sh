@HEAD@
environment=$here/@MAIN@
target=${1:-container.sif}
if [ "$#" -gt 0 ]; then shift; fi
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
case "$target" in /*) ;; *) target=./$target ;; esac
# An existing container stays until the new one is complete.
new=${target%.sif}.new-$$.sif
trap 'rm -rf -- "$temporary" "$new"' EXIT
cotainr build "$new" --base-image "$image" --conda-env "$environment" --accept-licenses "$@"
unset SINGULARITY_BIND APPTAINER_BIND
"$runtime" exec "$new" python - <<'CHECK'
@CHECK@
CHECK
mv -f -- "$new" "$target"
printf 'Built %s\n' "$target"
