"""Versions and specifiers as the catalog and the command line write them."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from resolver.errors import UsageError
from resolver.specifiers import parsed_version, place_of, read_specifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.specifiers import Specifier

_LONGEST = 1000  # characters of a specifier; what is longer is a mistake or an attack
_BARE_VERSION = re.compile(r"v?\d+(\.\d+)*([a-z].*)?(\+.*)?", re.IGNORECASE)


@cache
def sort_key(version: str) -> tuple[Any, ...]:
    """Order versions as PEP 440 does, and names that are no versions before them, by text.

    Examples
    --------
    >>> sorted(["10.0", "7.2", "7.14", "ubuntu.sif"], key=sort_key)
    ['ubuntu.sif', '7.2', '7.14', '10.0']
    """
    parsed = parsed_version(version)
    # Most are told apart by their place; comparing places is many times cheaper than versions.
    return (0, version) if parsed is None else (1, place_of(version), parsed)


def bounds_cross(specifier: Specifier) -> bool:
    """Tell whether nothing lies between two bounds of a specifier.

    Examples
    --------
    >>> [bounds_cross(parse_specifier(text)) for text in (">=2.4,<2.4", ">=2.4,<=2.4", "==2.4,<3")]
    [True, False, False]
    """
    lows = [(sort_key(one.version), one.operator == ">") for one in specifier if one.operator in {">", ">="}]
    highs = [
        (sort_key(one.version), one.operator == "<=") for one in specifier if one.operator in {"<", "<="}
    ]
    if not lows or not highs:
        return False
    (low, above), (high, included) = max(lows), min(highs)
    return low > high or (low == high and (above or not included))


def is_version(text: str) -> bool:
    """Tell whether a text is a version that can be ordered (PEP 440)."""
    return parsed_version(text) is not None


@cache
def minor(version: str) -> str:
    """Give the major.minor line of a version.

    Examples
    --------
    >>> minor("6.2.4"), minor("10.0")
    ('6.2', '10.0')
    """
    parsed = Version(version)
    return f"{parsed.major}.{parsed.minor}"


def abi_tag(python: str) -> str:
    """Give the ABI tag of a CPython minor.

    Examples
    --------
    >>> abi_tag("3.12"), abi_tag("")
    ('cp312', '')
    """
    return f"cp{python.replace('.', '')}" if python else ""


@lru_cache(maxsize=4096)
def parse_specifier(text: str) -> Specifier:
    """Read a version specifier; a bare version means that version and its patch releases.

    Parameters
    ----------
    text
        A PEP 440 specifier set (``">=2.4,<3"``), or a bare version (``"6.2"`` is ``==6.2.*``,
        ``"2.5.1"`` is ``==2.5.1``, ``"2.5.1+rocm6.2"`` exactly that).

    Raises
    ------
    UsageError
        The text is neither.

    Examples
    --------
    >>> str(parse_specifier("6.2")), str(parse_specifier("2.5.1")), str(parse_specifier(">=3.11"))
    ('==6.2.*', '==2.5.1', '>=3.11')
    """
    typed = text = text.strip()
    if _BARE_VERSION.fullmatch(text):
        short = text.count(".") <= 1 and text.replace(".", "").isdigit()
        text = f"=={text}.*" if short else f"=={text}"
    specifier = read_specifier(text) if len(text) <= _LONGEST else None
    if specifier is not None:
        return specifier
    msg = f"{shorten(typed)!r} is not a version specifier."
    raise UsageError(msg, hint="Write it as PEP 440 has it, such as ==6.2.* or >=2.4,<3.")


def allows(specifiers: Sequence[Specifier], version: str) -> bool:
    """Tell whether any of the specifiers allows the version (none given: all are allowed).

    A local version label takes part only where the specifier names one, as in PEP 440.

    Examples
    --------
    >>> allows([parse_specifier("==2.5.1")], "2.5.1+rocm6.2")
    True
    """
    return not specifiers or any(one.allows(version) for one in specifiers)


@lru_cache(maxsize=65536)
def satisfies(version: str, specifier: str) -> bool:
    """Tell whether a version is what a specifier allows; as `allows`, remembered.

    Examples
    --------
    >>> satisfies("2.5.1+rocm6.2", ">=2.4,<3")
    True
    """
    return parse_specifier(specifier).allows(version)


def newest_first(versions: Iterable[str]) -> list[str]:
    """Sort versions, the newest first."""
    return sorted(versions, key=sort_key, reverse=True)


def spell(versions: Sequence[str], *, most: int = 4, joiner: str = "or") -> str:
    """Write a list of versions for a sentence, shortened in the middle when it is long.

    Examples
    --------
    >>> spell(["3.9", "3.10"]), spell(["1", "2", "3", "4", "5", "6"])
    ('3.9 or 3.10', '1, 2, 3 ... 6 (6 versions)')
    """
    if len(versions) > most + 1:
        head = ", ".join(versions[: most - 1])
        return f"{head} ... {versions[-1]} ({len(versions)} versions)"
    if len(versions) > 1:
        return f"{', '.join(versions[:-1])} {joiner} {versions[-1]}"
    return versions[0] if versions else "nothing"


def shorten(text: str, most: int = 80) -> str:
    """Cut a text that somebody typed to a length that fits in a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
