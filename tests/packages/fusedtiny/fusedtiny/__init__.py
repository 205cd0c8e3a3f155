"""Imports whether or not anything was compiled, as Apex does."""
