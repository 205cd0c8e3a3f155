"""Every kind of failure, with its exit code, in one place.

========  ====================================================================
exit      meaning
========  ====================================================================
0         done
1         the answer is no: no resolution, a failed build, a defect, damage
2         bad usage or bad input
3         the environment lacks something: a compiler, a container, the network
130       interrupted, everything left resumable
========  ====================================================================
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_MOST_NAMES = 12
_MOST_GUESSES = 6
_CLOSE = 0.7


class MatrixError(Exception):
    """A failure that a person can act on.

    Parameters
    ----------
    message
        What failed and why, in one or more sentences.
    hint
        What to do next; empty when there is nothing sensible to say.
    """

    exit_code: ClassVar[int] = 1
    id: ClassVar[str] = "failed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: Mapping[str, Any] = {}
        """What a program gets besides the words: further keys of the JSON error."""


class UsageError(MatrixError):
    """The request itself is wrong: an unknown name, version, option value or file."""

    exit_code = 2
    id = "bad-input"


class CatalogError(UsageError):
    """A row of the catalog, or of an overlay, cannot be read."""

    id = "bad-catalog"


class LockError(UsageError):
    """A lock file cannot be used as it is."""

    id = "bad-lock"


class EnvironmentLacksError(MatrixError):
    """The machine lacks something that the work needs."""

    exit_code = 3
    id = "environment"


def _likeness(one: str, other: str) -> tuple[float, int]:
    """Measure how alike two names are; of equally alike ones the longer common beginning counts."""
    import difflib

    ratio = difflib.SequenceMatcher(None, one[:100], other).ratio()
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return round(ratio, 2), len(list(alike))


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant.

    Parameters
    ----------
    wanted
        What was typed.
    known
        All names that would have been right.

    Returns
    -------
    str
        ``"Did you mean apex?"`` when something is close, else the known names (at most `_MOST_NAMES`).

    Examples
    --------
    >>> did_you_mean("apx", ["torch", "apex"])
    'Did you mean apex?'
    >>> did_you_mean("gfx90b", ["gfx950", "gfx90a"])
    'Did you mean gfx90a?'
    >>> did_you_mean("zzz", ["torch", "apex"])
    'Known: torch, apex.'
    """
    names = list(dict.fromkeys(known))
    if not names:
        return ""
    likeness = {name: _likeness(wanted.lower(), name.lower()) for name in names}
    best = max(likeness.values())
    if best[0] >= _CLOSE:
        *others, last = [name for name in names if likeness[name] == best][:_MOST_GUESSES]
        return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"Known: {', '.join(names[:_MOST_NAMES])}{more}."
