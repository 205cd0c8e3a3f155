"""A package whose extension contains the path of its source."""
