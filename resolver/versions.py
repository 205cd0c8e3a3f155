"""Versions and specifiers in the forms that the catalog and the command line use."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from resolver.errors import UsageError
from resolver.specifiers import is_plain, key_or_none, specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.specifiers import Specifier

_LONGEST = 1000  # characters of a specifier; anything longer is a mistake or an attack
_BARE_VERSION = re.compile(r"v?\d+(\.\d+)*(\.\*|[a-z].*)?(\+.*)?", re.IGNORECASE)


@cache
def sort_key(version: str) -> tuple[Any, ...]:
    """Return a key that sorts versions as in PEP 440, and other names before all versions.

    Examples
    --------
    >>> sorted(["10.0", "7.2", "7.14", "ubuntu.sif"], key=sort_key)
    ['ubuntu.sif', '7.2', '7.14', '10.0']
    """
    key = key_or_none(version)
    if key is None:
        return 0, version
    # Most versions differ in their keys, and comparing keys is many times faster than comparing versions.
    return (1, key, Version(version)) if "+" in version else (1, key)


def bounds_cross(specifier: Specifier) -> bool:
    """Return whether the lower and upper bounds of a specifier exclude every version.

    Examples
    --------
    >>> [bounds_cross(parse_specifier(text)) for text in (">=2.4,<2.4", ">=2.4,<=2.4", "==2.4,<3")]
    [True, False, False]
    """
    lows = [(sort_key(c.version), c.operator == ">") for c in specifier if c.operator in {">", ">="}]
    highs = [(sort_key(c.version), c.operator == "<=") for c in specifier if c.operator in {"<", "<="}]
    if not lows or not highs:
        return False
    (low, excluded), (high, included) = max(lows), min(highs)
    return low > high or (low == high and (excluded or not included))


def is_version(text: str) -> bool:
    """Return whether a text is a valid version (PEP 440)."""
    return key_or_none(text) is not None


@cache
def minor(version: str) -> str:
    """Return the major.minor line of a version.

    Examples
    --------
    >>> minor("6.2.4"), minor("10.0")
    ('6.2', '10.0')
    """
    release = (*map(int, version.split(".")), 0) if is_plain(version) else (*Version(version).release, 0)
    return f"{release[0]}.{release[1]}"


@lru_cache(maxsize=4096)
def parse_specifier(text: str) -> Specifier:
    """Parse a version specifier or a bare version.

    Parameters
    ----------
    text
        A PEP 440 specifier set (``">=2.4,<3"``), or a bare version: ``"6.2"`` and ``"6.2.*"`` mean
        ``==6.2.*``, ``"2.5.1"`` means ``==2.5.1``, and ``"2.5.1+rocm6.2"`` means ``==2.5.1+rocm6.2``.

    Raises
    ------
    UsageError
        The text is neither a specifier nor a version.

    Examples
    --------
    >>> [str(parse_specifier(text)) for text in ("6.2", "6.2.*", "2.5.1", ">=3.11")]
    ['==6.2.*', '==6.2.*', '==2.5.1', '>=3.11']
    """
    typed = text = text.strip()
    if _BARE_VERSION.fullmatch(text):
        short = text.count(".") <= 1 and text.replace(".", "").isdigit()
        text = f"=={text}.*" if short else f"=={text}"
    specifier = specifier_or_none(text) if len(text) <= _LONGEST else None
    if specifier is None:
        msg = f"{shorten(typed)!r} is not a valid version specifier."
        raise UsageError(msg, hint="Use the form of PEP 440, such as ==6.2.* or >=2.4,<3.")
    return specifier


def allows(specifiers: Sequence[Specifier], version: str) -> bool:
    """Return whether any of the specifiers allows the version; an empty list allows all.

    A local version label is only compared if the specifier contains one, as in PEP 440.

    Examples
    --------
    >>> allows([parse_specifier("==2.5.1")], "2.5.1+rocm6.2")
    True
    """
    return not specifiers or any(specifier.allows(version) for specifier in specifiers)


@lru_cache(maxsize=65536)
def satisfies(version: str, specifier: str) -> bool:
    """Return whether a specifier allows a version.

    Examples
    --------
    >>> satisfies("2.5.1+rocm6.2", ">=2.4,<3")
    True
    """
    return parse_specifier(specifier).allows(version)


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return the versions sorted, newest first."""
    return sorted(versions, key=sort_key, reverse=True)


def join_words(words: Sequence[str], *, most: int = 4, joiner: str = "or") -> str:
    """Join versions or names for a sentence; a long list is shortened in the middle.

    Examples
    --------
    >>> join_words(["3.9", "3.10"]), join_words(["1", "2", "3", "4", "5", "6"])
    ('3.9 or 3.10', '1, 2, 3 ... 6 (6 in all)')
    """
    if len(words) > most + 1:
        return f"{', '.join(words[: most - 1])} ... {words[-1]} ({len(words)} in all)"
    if len(words) > 1:
        return f"{', '.join(words[:-1])} {joiner} {words[-1]}"
    return words[0] if words else "nothing"


def shorten(text: str, most: int = 80) -> str:
    """Cut user input to a length that fits in a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
