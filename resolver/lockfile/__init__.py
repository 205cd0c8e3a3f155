"""The lock as a file: its text, older schemas, its digest, and what its parts must mean together."""
