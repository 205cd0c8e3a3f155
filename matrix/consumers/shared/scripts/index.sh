index=${MATRIX_INDEX:-@INDEX@}
[ -f "$index/simple/index.html" ] || fail "there is no index at $index; set MATRIX_INDEX=DIR if it has moved"
index=$(realpath -- "$index")
case "$index" in *[:,]*) fail "cannot bind a path with : or , to a container: $index" ;; esac
need() {
    local wheels=("$index/simple/$1/"*"-$2-"*.whl)
    [ "${#wheels[@]}" -gt 0 ] || fail "the index $index has no $1 $2; build it with \`matrix build-wheels\`"
}
@NEEDS@
