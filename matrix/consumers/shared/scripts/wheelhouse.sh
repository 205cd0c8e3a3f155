index=${MATRIX_WHEELHOUSE:-@WHEELHOUSE@}
[ -d "$index" ] || fail "there is no wheelhouse at $index; set MATRIX_WHEELHOUSE=DIR if it has moved"
index=$(realpath -- "$index")
case "$index" in *[:,]*) fail "cannot bind a path with : or , to a container: $index" ;; esac
need() {
    [ -f "$index/$1" ] || fail "the wheelhouse $index has no $1; fill it with \`matrix farm fetch --wheelhouse DIR\`"
}
@NEEDS@
