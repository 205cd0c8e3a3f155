"""Hints and URLs in messages about sources."""

from __future__ import annotations

from urllib.parse import urlsplit

OFFLINE_HINT = "Run `matrix fetch` on a machine with network, or this command once without --offline."


def shown(url: str) -> str:
    """Leave a user's name and password out of an address.

    Examples
    --------
    >>> shown("https://me:secret@host/simple/")
    'https://host/simple/'
    """
    parts = urlsplit(url)
    if parts.hostname and "@" in parts.netloc:
        return url.replace(parts.netloc, parts.netloc.rpartition("@")[2])
    return url
