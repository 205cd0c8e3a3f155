"""Every error class of the program, with its exit code.

========  =======================================================================
exit      meaning
========  =======================================================================
0         success
1         the answer is no: no resolution, a build failed, a check found an error
2         bad usage or bad input
3         the environment lacks something: a compiler, a container, the network
70        a bug in matrix
130       interrupted; run the same command again to continue
========  =======================================================================
"""

from __future__ import annotations

import copyreg
from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

EXIT_INTERRUPTED = 130
IDS = {
    "audit": "The audit of a wheel found errors.",
    "bad-wheel": "The build backend produced a file that is not a valid wheel.",
    "hash-mismatch": "A file does not have the pinned hash.",
    "image-changed": "The base image differs from the image that the lock was resolved for.",
    "index-damaged": "An index is damaged.",
    "probe": "The reply of a probe cannot be read.",
    "recipe": "A recipe cannot build the requested wheel; nothing was compiled.",
}
"""The ids of errors that have no class, because nothing handles them apart, with their meaning."""


class MatrixError(Exception):
    """An error that the user can act on.

    It says what failed and why, and in `hint` what to do next. `id` is one of `IDS`, or that of the class.
    """

    exit_code: ClassVar[int] = 1
    id: str = "failed"

    def __init__(self, message: str, *, hint: str = "", id: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.id = id or self.id
        self.details: Mapping[str, Any] = {}
        """Additional keys of the JSON error document."""

    def changed(self, *, message: str = "", hint: str = "", **details: object) -> Self:
        """Return a copy with another message or hint, or with more details."""
        other = copy(self)
        other.args = (message or self.message,)
        other.message, other.hint = message or self.message, hint or self.hint
        other.details = {**self.details, **details}
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state for pickling, because the constructors take arguments other than `args`."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


# Exit code 2: bad usage or bad input.


class UsageError(MatrixError):
    """The request is wrong: an unknown name, version, option value or file."""

    exit_code = 2
    id = "bad-input"


class NoVersionError(UsageError):
    """No known version matches a requirement on the distribution `name`.

    It `is_published` if the indexes have the project, were read completely, and have no such release.
    """

    def __init__(self, message: str, name: str, *, hint: str = "", is_published: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.is_published = is_published


class CatalogError(UsageError):
    """A catalog file cannot be read, or its rows contradict each other."""

    id = "bad-catalog"


class LockError(UsageError):
    """A lock file cannot be used."""

    id = "bad-lock"


class CycleError(UsageError):
    """Distributions require each other in a cycle, so none of them can be installed first.

    Each in `path` requires the next; the last equals the first. No installer can work around it if one is
    needed `to_build` another.
    """

    id = "cycle"

    def __init__(self, path: Sequence[str], *, to_build: bool) -> None:
        first = "the distribution that is needed to build another" if to_build else "any of them"
        where, more = "[[requires]] rows", ""
        if to_build:
            where = f"{where} or in recipes"
            more = " A drafted recipe has what its source declares and imports."
        super().__init__(
            f"These distributions require each other in a cycle: {' -> '.join(path)}."
            f" A distribution is installed after its requirements, so matrix cannot install {first}.",
            hint=f"Remove one of these requirements. They are in {where} of these packages.{more}",
        )
        self.path = tuple(path)
        self.details = {"cycle": list(path)}


# Exit code 3: the environment lacks something.


class EnvironmentLacksError(MatrixError):
    """The machine lacks something that the command needs."""

    exit_code = 3
    id = "environment"


# Exit code 130: interrupted; the same command continues.


class StoppedError(MatrixError):
    """Builds were stopped because they reached the time limit."""

    exit_code = EXIT_INTERRUPTED
    id = "stopped"


# Exit code 70: a bug in matrix.


class InternalError(MatrixError):
    """An unexpected exception: a bug in matrix."""

    exit_code = 70
    id = "internal"


# Exit code 1: the answer is no.


class TooLargeError(MatrixError):
    """The search reached a limit."""

    id = "too-large"


class SourceError(MatrixError):
    """A source cannot be downloaded or unpacked."""

    id = "source"


class CommandError(MatrixError):
    """A program failed.

    `log` has its whole output, `lines` the most informative lines of it; `code` is negative for a signal.
    """

    id = "command-failed"

    def __init__(self, what: str, *, code: int, log: Path, lines: Sequence[str]) -> None:
        shown = "".join(f"\n    {line}" for line in lines)
        reason = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        super().__init__(f"{what} {reason}.{shown}\n  Log: {log}")
        self.log = log
        self.lines = tuple(lines)
        self.code = code


class TooSlowError(CommandError):
    """A program was stopped because it reached its time limit."""

    id = "too-slow"


class BuildError(MatrixError):
    """A wheel could not be built; it is not in the index."""

    id = "build-failed"
    findings: tuple[Any, ...] = ()
    """What the audit of the wheel found, or the causes that its log shows."""


class ProvenanceError(MatrixError):
    """A provenance document is invalid."""

    id = "bad-provenance"


class NameTakenError(MatrixError):
    """The index already has a different wheel with this name."""

    id = "name-taken"


_MOST_NAMES = 12
_MOST_GUESSES = 6
_CHARACTERS_PER_TYPO = 5
"""One typo is allowed for each group of this many typed characters."""
_MIN_PREFIX = 4


def did_you_mean(typed: str, known: Iterable[str], *, typos: int = 1) -> str:
    """Return a hint with the known names that are closest to the typed name.

    `typos` is the number of typos that even a short name may have. More than one suits short lists only.

    Examples
    --------
    >>> did_you_mean("apx", ["torch", "apex"])
    'Did you mean apex?'
    >>> did_you_mean("gfx90b", ["gfx950", "gfx90a"])
    'Did you mean gfx90a?'
    >>> did_you_mean("transformer", ["transformer-engine", "transformers"])
    'Did you mean transformers?'
    >>> did_you_mean("zzz", ["torch", "apex"])
    'Known: torch, apex.'
    >>> did_you_mean("transformers", ["torch", "transformer-engine"])
    'Known: torch, transformer-engine.'
    >>> did_you_mean("cotaner", ["cotainr", "tykky"], typos=2)
    'Did you mean cotainr?'
    """
    names = list(dict.fromkeys(known))
    if not names:
        return ""
    if close := closest_names(typed, names, typos=typos):
        *others, last = close[:_MOST_GUESSES]
        return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"Known: {', '.join(names[:_MOST_NAMES])}{more}."


def closest_names(typed: str, known: Iterable[str], *, typos: int = 1) -> list[str]:
    """Return the known names of which the typed name may be a misspelling, all equally close to it.

    Examples
    --------
    >>> closest_names("trition", ["ck", "triton"]), closest_names("dev", ["ck", "triton"])
    (['triton'], [])
    """
    most, lower = max(typos, len(typed) // _CHARACTERS_PER_TYPO), typed.lower()[:100]
    letters, least = {*lower}, max(most, 2)
    distance = {
        name: _distance(lower, name.lower())
        for name in known  # a typo changes the length by one at most, and the letters by two
        if (abs(len(name) - len(lower)) <= least and len(letters ^ {*name.lower()}) <= 2 * least)
        or name.lower().startswith(lower)
    }
    best = min(distance.values(), default=(len(typed), 0, 0))
    if best[0] > most or best[1] >= 0:
        return []
    return [name for name in distance if distance[name] == best]


def _distance(typed: str, name: str) -> tuple[int, int, int]:
    """Return the number of typos between two words; a longer common prefix, then a shorter end, break ties.

    A typo is a missing, additional or wrong character, or two swapped ones (optimal string alignment).
    A missing end of a name counts as one typo (``mamba``), an additional "py" as none (``pytorch``).
    Similarity ratios do not work here: they suggest ``transformer-engine`` for ``transformers``.
    """
    equal = (one == other for one, other in zip(typed, name, strict=False))
    prefix = sum(takewhile(bool, equal))
    if typed == f"py{name}":
        return 0, -1, 0
    if len(typed) >= _MIN_PREFIX and name.startswith(typed):
        return int(typed != name), -prefix, len(name) - prefix
    before: list[int] = []
    row = list(range(len(name) + 1))
    for i, character in enumerate(typed, start=1):
        above, before, row = before, row, [i]
        for j, other in enumerate(name, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (character != other)))
            if i > 1 and j > 1 and character == name[j - 2] and typed[i - 2] == other:
                row[j] = min(row[j], above[j - 2] + 1)
    return row[-1], -prefix, 0
