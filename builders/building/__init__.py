"""Build one wheel: the tasks of a lock, the steps of a build, its inputs, records and provenance."""
