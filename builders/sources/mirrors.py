"""Mirrors: one address asked in place of another, for every index, source and git remote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builders.sources.failures import shown
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESS = re.compile(r"(https?|ssh|git|file)://[^\s-]\S*")


def mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """Give the address that is asked instead of a URL.

    Parameters
    ----------
    url
        The address as the catalog, an index or a ``.gitmodules`` says it.
    mirrors
        URL prefix to what stands in its place. The longest prefix that fits wins; it ends where a
        part of the path ends, so that ``https://host`` does not speak of ``https://host.example``.

    Examples
    --------
    >>> mirrored("https://host/a/b", {"https://host/": "file:///m/", "https://host/a": "https://n"})
    'https://n/b'
    >>> mirrored("https://host.example/a", {"https://host": "file:///m"})
    'https://host.example/a'
    """
    for prefix in sorted(mirrors, key=len, reverse=True):
        rest = url.removeprefix(prefix)
        if url.startswith(prefix) and (prefix.endswith("/") or rest[:1] in {"", "/"}):
            return mirrors[prefix] + rest
    return url


def check_mirrors(mirrors: Mapping[str, str], *, where: str) -> None:
    """See that both sides of every mirror are addresses, and that both end with a slash or neither.

    Parameters
    ----------
    mirrors
        URL prefix to what stands in its place.
    where
        The file that says so, for the message.

    Raises
    ------
    UsageError
        One is not; without the same end the two parts of an address would run together.
    """
    for prefix, instead in mirrors.items():
        for address in (prefix, instead):
            if not _ADDRESS.fullmatch(address):
                msg = f"{where}, [mirrors]: {shown(address)!r} is no address."
                raise UsageError(msg, hint="Write https://HOST/PATH/, ssh://HOST/PATH/ or file:///PATH/.")
        if prefix.endswith("/") != instead.endswith("/"):
            msg = f"{where}, [mirrors]: end both {shown(prefix)!r} and {shown(instead)!r} with / or neither."
            raise UsageError(msg)
