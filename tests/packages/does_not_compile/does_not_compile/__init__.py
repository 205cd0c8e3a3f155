"""A package whose extension does not compile."""
