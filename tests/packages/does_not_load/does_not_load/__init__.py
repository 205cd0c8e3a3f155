"""A package whose extension does not load."""
