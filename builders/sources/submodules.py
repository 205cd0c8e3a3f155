"""Which submodules of a commit are wanted, and where each is to be had.

Source: gitmodules(5) and gitsubmodules(7).
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builders.sources.failures import shown
from resolver.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALL = ("",)
"""All submodules, with their own."""
_URL = re.compile(r"(https?|ssh|git|file)://[^\s-]\S*")
_SCP = re.compile(r"[\w.]+@[\w.][\w.-]*:[^\s:-][^\s:]*")


def wanted(listed: Sequence[str], present: Iterable[str], where: str) -> dict[str, tuple[str, ...]]:
    """Choose submodules.

    Parameters
    ----------
    listed
        What the pin lists: submodules or directories. Each stands for all submodules at or below it,
        with all of their own; one that reaches into a submodule stands for that part of it.
    present
        Paths of the submodules that the commit has.
    where
        The repository, for messages.

    Returns
    -------
    dict
        Path of each wanted submodule to what is wanted of its own ones.

    Raises
    ------
    SourceError
        Nothing is there for something that the pin lists.

    Examples
    --------
    >>> wanted(["third_party"], ["third_party/ck", "csrc/cutlass"], "")
    {'third_party/ck': ('',)}
    >>> wanted(["3rdparty/aiter/3rdparty/ck"], ["3rdparty/aiter"], "")
    {'3rdparty/aiter': ('3rdparty/ck',)}
    """
    listed = [one.rstrip("/") for one in listed]
    present = sorted(present)
    chosen: dict[str, tuple[str, ...]] = {}
    used = set()
    for path in present:
        for one in listed:
            if one in {"", path} or path.startswith(f"{one}/"):
                chosen[path] = ALL
            elif one.startswith(f"{path}/") and chosen.get(path) != ALL:
                chosen[path] = (*chosen.get(path, ()), one.removeprefix(f"{path}/"))
            else:
                continue
            used.add(one)
    for one in listed:
        if one and one not in used:
            there = f"it has {', '.join(present)}" if present else "it has none"
            msg = f"{where} has no submodule {one}, which the catalog lists; {there}."
            raise SourceError(msg, hint="Correct the release's row in the catalog, and resolve again.")
    return chosen


def parse_gitmodules(listing: bytes | None) -> dict[str, str]:
    """Read what ``git config --list -z`` prints of a ``.gitmodules``: path to URL."""
    said: dict[str, dict[str, str]] = {}
    for line in (listing or b"").decode("utf-8", "surrogateescape").split("\0"):
        key, _, value = line.partition("\n")
        section, _, variable = key.rpartition(".")
        if section.startswith("submodule.") and variable in {"path", "url"}:
            said.setdefault(section, {})[variable] = value
    return {one["path"]: one["url"] for one in said.values() if one.keys() == {"path", "url"}}


def checked_url(url: str) -> str:
    """Give the address of a repository in one form, and refuse what git would take for a command.

    Raises
    ------
    SourceError
        It is an option, a helper program (``ext::``), or nothing that is known.

    Examples
    --------
    >>> checked_url("git@host:group/name.git")
    'ssh://git@host/group/name.git'
    """
    if url.startswith("/"):
        return f"file://{url}"
    if _SCP.fullmatch(url):
        host, _, path = url.partition(":")
        return f"ssh://{host}/{path.lstrip('/')}"
    if not _URL.fullmatch(url):
        msg = f"{shown(url)!r} is no address that a source may be fetched from."
        raise SourceError(msg, hint="Known are https, http, ssh, git and file.")
    return url


def submodule_url(said: str, parent: str, where: str) -> str:
    """Give the address of a submodule.

    Parameters
    ----------
    said
        What ``.gitmodules`` says; ``./`` and ``../`` are relative to the repository it stands in.
    parent
        The address of that repository, before mirrors.
    where
        That repository and the path, for messages.

    Raises
    ------
    SourceError
        The address is refused: a repository from elsewhere must not name files of this machine.

    Examples
    --------
    >>> submodule_url("../ck.git", "https://host/group/name", "")
    'https://host/group/ck.git'
    """
    if said.startswith(("./", "../")):
        parts = urlsplit(parent)
        path = posixpath.normpath(posixpath.join(parts.path, said))
        return checked_url(parts._replace(path=path).geturl())
    try:
        url = checked_url(said)
    except SourceError as error:
        msg = f"{where} is refused: {error.message}"
        raise SourceError(msg, hint="Look at that repository before you trust it.") from None
    if url.startswith("file:") and not parent.startswith("file:"):
        msg = f"{where} is refused: it points to {url}, on this machine."
        raise SourceError(msg, hint="Look at that repository before you trust it.")
    return url
