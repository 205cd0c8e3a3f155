"""Refreshing the facts from public sources: PyPI, PyTorch's wheel indexes, AMD's compatibility table.

One module a source turns what it says into rows of the catalog; none of them writes anything. What
is learned becomes an addition to a file of the user's own (`overlay`), shown as a diff first.
"""
