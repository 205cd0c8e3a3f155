@HEAD@
environment=$here/@MAIN@
target=${1:-container.sif}
if [ "$#" -gt 0 ]; then shift; fi
@UNSET@
# cotainr calls it singularity, and some Apptainers have no command of that name.
if ! command -v singularity >/dev/null; then
    names=$(mktemp -d)
    trap 'rm -rf -- "$names"' EXIT
    ln -s -- "$runtime" "$names/singularity"
    export PATH="$names:$PATH"
fi
command -v cotainr >/dev/null || fail "cotainr is not on PATH@LOAD@"
[ -f "$environment" ] || fail "there is no $environment"
@CHECKS@
export PYTHONNOUSERSITE=1
# pip's cache would end up inside the container.
export PIP_NO_CACHE_DIR=1
# The container sees no other directory that TMPDIR may name.
case "$(realpath -m -- "${TMPDIR:-/tmp}")/" in
    /tmp/* | /var/tmp/*) ;;
    *)
        printf '%s: TMPDIR=%s cannot be seen inside the container, so /tmp is used\n' build.sh "$TMPDIR" >&2
        export TMPDIR=/tmp
        ;;
esac
# cotainr would ask whether to replace it, and wait for an answer.
rm -f -- "$target"
cotainr build "$target" --base-image "$image" --conda-env "$environment" --accept-licenses "$@"
unset SINGULARITY_BIND APPTAINER_BIND
case "$target" in /*) ;; *) target=./$target ;; esac
"$runtime" exec "$target" python - <<'CHECK'
@CHECK@
CHECK
