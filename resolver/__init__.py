"""Facts and decisions: turn a request into a resolution, or into the facts that forbid it.

Nothing in this package starts a program or uses the network. It reads the catalog, its overlays, locks
and lists of installed distributions, and writes locks and the compiled form of the catalog. See
``docs/development/architecture.md``.
"""
