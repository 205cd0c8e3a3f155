"""Readers: one module for each family of formats, all of which return the same type."""
