"""The catalog: facts in TOML files, the schema of their rows, and the loader."""
