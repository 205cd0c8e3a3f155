image=${MATRIX_BASE_IMAGE:-@IMAGE@}
[ -n "$image" ] || fail "the lock names no base image: say it with MATRIX_BASE_IMAGE=PATH"
case "$image" in
    *://*) ;;
    *) [ -e "$image" ] || fail "there is no base image $image (name another with MATRIX_BASE_IMAGE=PATH)" ;;
esac
