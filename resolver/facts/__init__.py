"""The catalog: facts in TOML files, the schema of their rows, and how they are loaded."""
