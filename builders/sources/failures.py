"""What can go wrong with a source, and how an address is shown."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builders.files import FULL, REFUSED
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OFFLINE_HINT = "Run matrix fetch where there is network, or this command once without --offline."


@contextmanager
def writing(directory: Path, *, hint: str) -> Iterator[None]:
    """Say what it means when the system refuses to write below a directory.

    Raises
    ------
    EnvironmentLacksError
        The disk or the quota is full, the directory may not be written, or the like.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL | REFUSED:
            raise
        msg = f"{directory} cannot be written: {os.strerror(error.errno)}. Nothing of it was kept."
        raise EnvironmentLacksError(msg, hint=hint) from None


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
