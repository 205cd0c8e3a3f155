"""Knows the facts and decides: a request becomes a resolution, or the facts that forbid it.

Nothing in this package starts a program or asks the network; the only thing it reads is the
catalog. See ``docs/architecture.md``.
"""
