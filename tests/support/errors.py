"""The ids of errors, for `pytest.raises`."""

from __future__ import annotations

from collections.abc import Callable

from resolver.errors import MatrixError


def has_id(name: str) -> Callable[[MatrixError], bool]:
    """Return a check whether an error has this id."""
    return lambda error: error.id == name
