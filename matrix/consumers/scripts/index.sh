index=${MATRIX_INDEX:-@INDEX@}
[ -f "$index/simple/index.html" ] || fail "there is no index at $index (name another with MATRIX_INDEX=DIR)"
index=$(realpath -- "$index")
case "$index" in *[:,]*) fail "a path with : or , cannot be bound: $index" ;; esac
need() {
    local found=("$index/simple/$1/"*"-$2-"*.whl)
    [ "${#found[@]}" -gt 0 ] || fail "the index $index lacks $1 $2: matrix build-wheels makes it"
}
@NEEDS@
