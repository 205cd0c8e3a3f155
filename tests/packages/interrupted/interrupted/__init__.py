"""A package whose first build is killed."""
