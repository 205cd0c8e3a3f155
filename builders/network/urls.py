"""URLs of indexes and repositories: mirrors, and messages without passwords."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFLINE_HINT = "Run `matrix fetch` on a machine with network access, or this command once without --offline."
NETWORK_HINT = "Check the network. On a compute node, run `matrix fetch` on a login node first."
_LOGIN = re.compile(r"//[^/]*@")
_URL = re.compile(r"(https?|ssh|git|file)://[^\s-]\S*")


def mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """Return a URL with its prefix replaced by that of a mirror.

    The longest matching prefix is used. A prefix matches whole parts of a path: ``https://host`` does not
    match ``https://host.example``. The ending ``.git`` of a repository is optional.

    Examples
    --------
    >>> mirrored("https://host/a/b", {"https://host/": "file:///m/", "https://host/a": "https://n"})
    'https://n/b'
    >>> mirrored("https://host.example/a", {"https://host": "file:///m"})
    'https://host.example/a'
    >>> mirrored("https://host/a.git", {"https://host/a": "file:///m/a"})
    'file:///m/a'
    """
    for prefix in sorted(mirrors, key=len, reverse=True):
        if not url.startswith(prefix):
            continue
        rest = url.removeprefix(prefix)
        if prefix.endswith("/") or rest[:1] in {"", "/"}:
            return mirrors[prefix] + rest
        if rest == ".git":
            return mirrors[prefix]
    return url


def check_mirrors(mirrors: Mapping[str, str], *, where: str) -> None:
    """Check that both sides of every mirror are URLs, and that both or neither end with a slash."""
    for prefix, replacement in mirrors.items():
        for url in (prefix, replacement):
            if not _URL.fullmatch(url):
                msg = f"{where}, [mirrors]: {without_password(url)!r} is not a valid URL."
                raise UsageError(msg, hint="Write https://HOST/PATH/, ssh://HOST/PATH/ or file:///PATH/.")
        if prefix.endswith("/") != replacement.endswith("/"):
            shown = f"{without_password(prefix)!r} and {without_password(replacement)!r}"
            msg = f"{where}, [mirrors]: only one of {shown} ends with a slash."
            raise UsageError(msg, hint="End both with / or neither.")


def without_password(url: str) -> str:
    """Return a URL without its user name and password.

    Examples
    --------
    >>> without_password("https://me:secret@host/simple/")
    'https://host/simple/'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # a malformed host
        return _LOGIN.sub("//", url)
    if parts.hostname and "@" in parts.netloc:
        return url.replace(parts.netloc, parts.netloc.rpartition("@")[2])
    return url


def git_commit(url: str) -> tuple[str, str] | None:
    """Return the URL of the repository and the commit in the direct reference of a lock; None for other URLs.

    Examples
    --------
    >>> git_commit("git+https://host/name.git@0123#subdirectory=python")
    ('https://host/name.git', '0123')
    """
    if not url.startswith("git+"):
        return None
    repository, _, commit = url.partition("#")[0].removeprefix("git+").rpartition("@")
    return repository, commit


def local_path(url: str) -> Path | None:
    """Return the path of a ``file`` URL; None for other URLs."""
    if not url.startswith("file:"):
        return None
    try:
        return Path(unquote(urlsplit(url).path))
    except ValueError:  # a malformed host
        return None
