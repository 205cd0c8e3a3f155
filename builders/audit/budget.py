"""Limit the work on a wheel by its size: counts and sizes in a damaged or hostile file can be anything."""

from __future__ import annotations

from builders.wheels.wheel import DamagedError

_BASE = 600_000_000
_PER_BYTE = 5_000


class Budget:
    """The work that a file of some size justifies, in nanoseconds on an ordinary CPU.

    Real wheels use a small part of this budget. `size` is in bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = _BASE + _PER_BYTE * size

    def spend(self, work: int) -> None:
        """Subtract work that is about to be done.

        Raise `DamagedError` if the budget is used up.
        """
        self._left -= work
        if self._left < 0:
            msg = "its tables are larger than those of any real file of this size"
            raise DamagedError(msg)
