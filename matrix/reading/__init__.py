"""Readers: what an environment consists of, from files that describe it."""
