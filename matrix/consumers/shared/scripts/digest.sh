if [ -f "$image" ]; then
    # sha256sum writes a backslash before the digest if it had to escape the name.
    digest=$(sha256sum -- "$image"); digest=${digest%% *}; digest=${digest#\\}
    locked=@DIGEST@
    [ "$digest" = "$locked" ] ||
        fail "the base image has changed: $image has digest $digest, but the lock was resolved for $locked; resolve again, or set MATRIX_BASE_IMAGE=PATH"
fi
