# Bind variables of site modules stop a build with --writable, PYTHONPATH makes pip believe that packages
# are installed, and pip's own settings may send them elsewhere.
unset @UNSET@
@RUNTIME@
# The container sees no other directory for temporary files.
for variable in TMPDIR TEMP TMP; do
    [ -n "${!variable:-}" ] || continue
    case "$(realpath -m -- "${!variable}")/" in
        @VISIBLE@) ;;
        *)
            printf '%s: the container cannot see %s=%s, so @TEMPORARY@ is used\n' "${0##*/}" "$variable" "${!variable}" >&2
            unset "$variable"
            ;;
    esac
done
temporary=$(mktemp -d -- "${TMPDIR:-@TEMPORARY@}/matrix-XXXXXX") || fail "cannot create a directory for temporary files"
trap 'rm -rf -- "$temporary"' EXIT
# Certificates of this machine may be missing in the container, or be others under the same path.
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
# A program that is killed leaves its temporary files; these go with this directory.
export TMPDIR=$temporary
