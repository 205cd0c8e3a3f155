"""A package whose extension compiles and loads."""
