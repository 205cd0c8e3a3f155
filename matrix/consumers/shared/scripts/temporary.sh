# A run for the same result that was killed on this machine left its files; they are removed, also if a program of it
# still runs. The name has the result, the machine, which may share the directory with others, and the process.
key=matrix-$(realpath -m -- "$@TARGET@" | cksum | tr -d ' \n')-$(uname -n)
for left in "$temporary/$key"-*; do
    process=${left#"$temporary/$key-"}
    if [ -O "$left" ] && ! kill -0 "${process%-*}" 2>/dev/null; then
        chmod -R u+w -- "$left" || :
        rm -rf -- "$left"
    fi
done
temporary=$(mktemp -d -- "$temporary/$key-$$-XXXXXX") || fail "cannot create a directory for temporary files"
