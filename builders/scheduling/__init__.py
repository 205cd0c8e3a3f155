"""Several builds at once: which task starts when, and the executor that builds on this machine."""
