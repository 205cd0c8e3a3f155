# With the bind variables of site modules, a build with --writable fails. pip treats packages in PYTHONPATH as
# installed, and its settings may name another directory.
unset @UNSET@
for variable in @LIMITING@; do
    [ -z "${!variable:-}" ] || printf '%s: %s is kept, and changes what pip installs\n' "${0##*/}" "$variable" >&2
done
@RUNTIME@
# Other directories for temporary files are not visible in the container.
for variable in TMPDIR TEMP TMP; do
    [ -n "${!variable:-}" ] || continue
    case "$(realpath -m -- "${!variable}")/" in
        @VISIBLE@) ;;
        *)
            printf '%s: %s=%s is not visible in the container, so @TEMPORARY@ is used\n' "${0##*/}" "$variable" "${!variable}" >&2
            unset "$variable"
            ;;
    esac
done
temporary=${TMPDIR:-@TEMPORARY@}
@DIRECTORY@
trap 'rm -rf -- "$temporary"' EXIT
# The container may lack the certificates of this machine, or have other certificates at their paths.
for variable in @CERTIFICATES@; do
    file=${!variable:-}
    [ -f "$file" ] || continue
    case "$(realpath -- "$file")" in
        @VISIBLE@) ;;
        *)
            cp -- "$file" "$temporary/$variable.pem" || fail "cannot write to $temporary (see above); make space there"
            export "$variable=$temporary/$variable.pem"
            ;;
    esac
done
# pip's cache would end up inside the container.
export PIP_NO_CACHE_DIR="${PIP_NO_CACHE_DIR-1}"
# A killed program leaves its temporary files. They are removed with this directory.
export TMPDIR=$temporary
