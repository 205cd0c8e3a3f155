# pip skips wheels for a newer glibc, and reports only the versions of other wheels.
glibc=${MATRIX_GLIBC:-$(getconf GNU_LIBC_VERSION | cut -d" " -f2)}
[ "$(printf '%s\n' @GLIBC@ "$glibc" | sort -V | head -n 1)" = @GLIBC@ ] ||
    fail "the wheels require glibc @GLIBC@, and tykky's container has that of this machine, $glibc; resolve again" \
        "with --for tykky, which chooses a base image with an older glibc, and build the wheels again"
