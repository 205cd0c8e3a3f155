"""Git's trees, as far as a source needs them: what is in one, whether that is safe, and its hash.

Source: the formats of trees, blobs and commits are in gitformat-pack(5) and "Git Internals - Git
Objects" of the book Pro Git; the names that are refused are those of fsck.c of git.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resolver.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE, EXECUTABLE, LINK, SUBMODULE, TREE = "100644", "100755", "120000", "160000", "40000"
_GROUP_WRITABLE = "100664"  # of the first years of git; some repositories still hold it
_MODES = {FILE, EXECUTABLE, LINK, SUBMODULE, _GROUP_WRITABLE}
_MOST_LINKS = 40  # as path_resolution(7)
_DEEPEST = 200  # directories; the deepest source known has 20
_SHOWN = 200  # characters of a path


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tree says of one path."""

    mode: str
    id: str
    """Hash of the blob, or the commit of a submodule."""


def parse_listing(listing: bytes, where: str) -> dict[str, Entry]:
    """Read what ``git ls-tree -r -z`` prints, and refuse what must not be written to a disk.

    Parameters
    ----------
    listing
        The output. File names are taken as bytes, as ``os.fsdecode`` does.
    where
        The repository, for messages.

    Raises
    ------
    SourceError
        A path leads out of the tree or into ``.git``, stands there twice, or is no file, link or
        submodule.
    """
    entries: dict[str, Entry] = {}
    for line in listing.decode("utf-8", "surrogateescape").split("\0"):
        if not line:
            continue
        described, _, path = line.partition("\t")
        mode, _, name = described.split(" ")
        if mode not in _MODES:
            raise _hostile(where, path, f"has the mode {mode}")
        _check_path(path, where)
        if path in entries:
            raise _hostile(where, path, "stands there twice")
        entries[path] = Entry(mode, name)
    for path in entries:
        above = path.split("/")[:-1]
        for number in range(1, len(above) + 1):
            if "/".join(above[:number]) in entries:
                raise _hostile(where, path, "lies below something that is no directory")
    return entries


def _check_path(path: str, where: str) -> None:
    if path.count("/") > _DEEPEST:
        raise _hostile(where, path[:_SHOWN], "lies too deep")
    for part in path.split("/"):
        if part in {"", ".", ".."}:
            raise _hostile(where, path, "leads out of the tree")
        if part.lower() == ".git":
            raise _hostile(where, path, "would be taken for a repository")


def check_links(links: Mapping[str, str], where: str) -> None:
    """See that no symbolic link leads out of the tree, also not through other links.

    Parameters
    ----------
    links
        Path of each link, and what it says.

    Raises
    ------
    SourceError
        One does.
    """
    for path, target in links.items():
        if _leads_out(path, links):
            raise _hostile(where, path, f"is a link that leads out of the tree: {target}")


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    here, todo, followed = path.split("/")[:-1], [path.rpartition("/")[2]], 0
    while todo:
        part = todo.pop(0)
        if part in {"", "."}:
            continue
        if part == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(part)
        target = links.get("/".join(here))
        if target is None:
            continue
        followed += 1
        if target.startswith("/"):
            return True
        if followed > _MOST_LINKS:
            return False  # leads in a circle, and so nowhere
        here.pop()
        todo = target.split("/") + todo
    return False


def _hostile(where: str, path: str, why: str) -> SourceError:
    msg = f"{where} is refused: {path.encode('utf-8', 'backslashreplace').decode()!r} {why}."
    return SourceError(msg, hint="Nothing of it was kept. Look at that repository before you trust it.")


def blob_id(parts: Iterable[bytes], size: int) -> str:
    """Give the hash of a file's content, which comes in parts."""
    return _hash("blob", parts, size)


def object_id(kind: str, content: bytes) -> str:
    """Give the hash of an object, such as a ``commit``."""
    return _hash(kind, [content], len(content))


def _hash(kind: str, parts: Iterable[bytes], size: int) -> str:
    digest = hashlib.sha1(f"{kind} {size}\0".encode(), usedforsecurity=False)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def tree_id(entries: Mapping[str, Entry]) -> str:
    """Give the hash of a tree by what is in it.

    Directories are those of the paths; a path of mode `TREE` stands for a whole directory.

    Examples
    --------
    >>> tree_id({})
    '4b825dc642cb6eb9a060e54bf8d69288fbee4904'
    """
    below: dict[str, dict[str, Entry]] = {}
    here: dict[str, Entry] = {}
    for path, entry in entries.items():
        name, slash, rest = path.partition("/")
        if slash:
            below.setdefault(name, {})[rest] = entry
        else:
            here[name] = entry
    here |= {name: Entry(TREE, tree_id(inside)) for name, inside in below.items()}
    raw = {name.encode("utf-8", "surrogateescape"): entry for name, entry in here.items()}
    # Git sorts a directory as if its name ended with a slash.
    names = sorted(raw, key=lambda name: name + b"/" if raw[name].mode == TREE else name)
    content = b"".join(
        raw[name].mode.encode() + b" " + name + b"\0" + bytes.fromhex(raw[name].id) for name in names
    )
    return object_id("tree", content)
