image=${MATRIX_BASE_IMAGE:-@IMAGE@}
[ -n "$image" ] || fail "the lock has no base image; set MATRIX_BASE_IMAGE=PATH"
case "$image" in
    *://*) ;;
    *) [ -e "$image" ] || fail "there is no base image $image; set MATRIX_BASE_IMAGE=PATH if it has moved" ;;
esac
