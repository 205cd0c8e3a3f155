"""A package that can be imported whether or not anything was compiled, like Apex."""
