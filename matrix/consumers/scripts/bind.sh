# With --writable no mount point is made: /mnt must be there, or the whole build dies.
case "$image" in
    *://*) ;;
    *) "$runtime" exec "$image" test -d /mnt ||
        fail "$image has no /mnt to bind the index to, or cannot be started (see above)" ;;
esac
export SINGULARITY_BIND="$index:/mnt:ro" APPTAINER_BIND="$index:/mnt:ro"
