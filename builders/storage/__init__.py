"""Files, locks, modes, the cache, temporary directories and logs."""
