"""The catalog: facts in TOML, their schema, and how they are read and overlaid."""
