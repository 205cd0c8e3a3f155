"""The one search over platform, catalog and indexes: variables, rules, reading, judging."""
