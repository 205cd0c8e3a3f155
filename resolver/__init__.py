"""Resolve a request with the facts of the catalog, or return the facts that conflict.

This package does not start programs or use the network. It reads the catalog, its overlays
and locks, and writes only the compiled form of the catalog. See ``docs/development/architecture.md``.
"""
