# --writable creates no mount point: without /mnt in the image the whole build fails.
case "$image" in
    *://*) ;;
    *) "$runtime" exec "$image" test -d /mnt ||
        fail "$image has no /mnt to bind the index to, or cannot be started (see above)" ;;
esac
export SINGULARITY_BIND="$index:/mnt:ro" APPTAINER_BIND="$index:/mnt:ro"
