"""The files of a commit with its submodules as one archive that proves what it is.

An archive is kept under the hash of git's tree of all files, submodules in their places as ordinary
directories. Beside it a record keeps the commits. Whenever an archive is used, the trees are hashed
anew from its files and compared with those that the pinned commit names, submodules by way of the
commits that the tree of the outer repository names. So the pin vouches for every byte, and neither the
cache nor a mirror has to be trusted.

The archive holds no ``.git``: what a build makes of the history or of other submodules would depend on
more than the pin, and some (flash-attn, Transformer Engine) use the network if they find one.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from builders.sources.failures import shown
from builders.sources.formats import tarfile, zstd
from builders.sources.submodules import wanted
from builders.sources.trees import (
    EXECUTABLE,
    FILE,
    LINK,
    SUBMODULE,
    TREE,
    Entry,
    blob_id,
    check_links,
    object_id,
    tree_id,
)
from builders.sources.unpack import reading
from resolver.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from builders.sources.repository import Repository
    from resolver.facts.schema import Git

TOP = "source"
_TIME = 315532800  # 1980-01-01, the oldest that a wheel can say
_LEVEL = 3  # of zstandard: faster than the disk, and half the size
_CHUNK = 2**18
_LFS = b"version https://git-lfs.github.com/spec/"
_LONGEST_POINTER = 1024  # bytes, as the specification of Git LFS says


class Module(msgspec.Struct, frozen=True):
    """A repository in its place: the outer one (an empty path) or a submodule."""

    url: str
    commit: str
    object: str
    """The commit as git keeps it, each byte as one character."""


class Record(msgspec.Struct, frozen=True):
    """What is in an archive."""

    schema: int
    url: str
    commit: str
    tree: str
    """Hash of the tree of all files."""
    modules: dict[str, Module]
    """Path to repository."""
    gitlinks: dict[str, str]
    """Path of every submodule, also of those that were left out, to its commit."""
    odd_modes: dict[str, str] = {}
    """Modes of files that are not those of today's git."""
    large_files: tuple[str, ...] = ()
    """Files that Git LFS keeps elsewhere: the archive has only what stands for them."""


@dataclass(slots=True)
class Part:
    """A repository in its place, with what its commit holds."""

    path: str
    repository: Repository
    commit: str
    entries: dict[str, Entry]


def joined(path: str, below: str) -> str:
    """Give the path of something in a repository that has a place in another."""
    return f"{path}/{below}" if path else below


def record_of(pin: Git, parts: Sequence[Part]) -> Record:
    """Say what an archive of a commit and its submodules holds."""
    everything = {joined(part.path, path): entry for part in parts for path, entry in part.entries.items()}
    gitlinks = {path: entry.id for path, entry in everything.items() if entry.mode == SUBMODULE}
    files = {path: entry for path, entry in everything.items() if entry.mode != SUBMODULE}
    left_out = gitlinks.keys() - {part.path for part in parts}
    return Record(
        schema=1,
        url=pin.url,
        commit=pin.commit,
        tree=_tree_of_all(files, left_out),
        modules={
            part.path: Module(
                shown(part.repository.url),
                part.commit,
                part.repository.commit_object(part.commit).decode("latin-1"),
            )
            for part in parts
        },
        gitlinks=gitlinks,
        odd_modes={
            path: entry.mode for path, entry in files.items() if entry.mode not in {FILE, EXECUTABLE, LINK}
        },
    )


def write_archive(target: Path, parts: Sequence[Part], record: Record) -> list[str]:
    """Write an archive, the same bytes for the same files; gives the files that Git LFS keeps elsewhere.

    Raises
    ------
    SourceError
        A link leads out of the tree, or a copy in the cache is damaged.
    """
    left_out = record.gitlinks.keys() - record.modules.keys()
    pointers: list[str] = []
    links: dict[str, str] = {}
    with ExitStack() as stack:
        sink = stack.enter_context(zstd.open(target, "wb", level=_LEVEL))
        tar = stack.enter_context(tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT))
        for path in ("", *sorted(left_out)):
            tar.addfile(_member(path, kind=tarfile.DIRTYPE, mode=0o755))
        for part in parts:
            members = stack.enter_context(closing(_members(part)))
            for path, member, source in members:
                if member.issym():
                    links[path] = member.linkname
                    tar.addfile(_member(path, kind=tarfile.SYMTYPE, mode=0o777, linkname=member.linkname))
                    continue
                if member.size <= _LONGEST_POINTER:
                    content = source.extractfile(member).read()
                    pointers += [path] if content.startswith(_LFS) else []
                mode = 0o755 if member.mode & 0o100 else 0o644
                tar.addfile(_member(path, mode=mode, size=member.size), source.extractfile(member))
        check_links(links, f"{shown(parts[0].repository.url)} at {parts[0].commit}")
    return pointers


def _members(part: Part) -> Generator[tuple[str, Any, Any], None, None]:
    """Give path, member and archive for all files and links of a repository."""
    missing = {path for path, entry in part.entries.items() if entry.mode != SUBMODULE}
    with part.repository.tar(part.commit) as path, tarfile.open(path, "r:") as source:
        for member in source:
            if member.isdir():
                continue
            if member.name not in missing:
                msg = f"git gave the file {member.name!r}, which commit {part.commit} does not have."
                raise SourceError(msg, hint=f"Remove {part.repository.path} to fetch it again.")
            missing.discard(member.name)
            yield joined(part.path, member.name), member, source


def _member(path: str, *, kind: bytes = tarfile.REGTYPE, mode: int, size: int = 0, linkname: str = "") -> Any:  # noqa: ANN401  the backport has no types
    member = tarfile.TarInfo(joined(TOP, path) if path else TOP)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, linkname
    member.mtime = _TIME
    return member


def verify(archive: Path, record: Record, pin: Git) -> None:
    """See that an archive holds what the pinned commit and its submodules name, and nothing else.

    1. Each file is hashed, and belongs to the innermost repository around it.
    2. Each commit is the pinned one, or the one that the repository around it names.
    3. Each commit names the very tree that its files hash to.
    4. The submodules are those that the pin lists.

    Parameters
    ----------
    archive
        The archive.
    record
        What it should hold; nothing in it is believed before it is checked.
    pin
        What was pinned.

    Raises
    ------
    SourceError
        It does not.
    """
    found = _hashed(archive, record.odd_modes)
    submodules = {path: Entry(SUBMODULE, one) for path, one in record.gitlinks.items()}
    inside: dict[str, dict[str, Entry]] = {path: {} for path in record.modules}
    for path, entry in {**found, **submodules}.items():
        nearest = _nearest(path, record)
        if nearest not in inside:
            raise _not_the_pinned(archive, f"there is something in {nearest or 'it'}, which was left out")
        inside[nearest][path.removeprefix(f"{nearest}/") if nearest else path] = entry
    for path, module in record.modules.items():
        commit = record.gitlinks.get(path, "") if path else pin.commit
        raw = module.object.encode("latin-1")
        if object_id("commit", raw) != commit:
            raise _not_the_pinned(archive, f"the commit of {path or 'it'} is not {commit}")
        if raw.partition(b"\n")[0] != f"tree {tree_id(inside[path])}".encode():
            raise _not_the_pinned(archive, f"the files of {path or 'it'} are not those of {commit}")
    if _listed(pin, inside) != record.modules.keys():
        raise _not_the_pinned(archive, "its submodules are not those that are listed")
    if _tree_of_all(found, record.gitlinks.keys() - record.modules.keys()) != record.tree:
        raise _not_the_pinned(archive, "its tree is another")


def _nearest(path: str, record: Record) -> str:
    """Give the place of the innermost repository around a path."""
    above = path.rpartition("/")[0]
    while above and above not in record.modules and above not in record.gitlinks:
        above = above.rpartition("/")[0]
    return above


def _listed(pin: Git, inside: Mapping[str, Mapping[str, Entry]]) -> set[str]:
    """Give the places of all repositories that a pin asks for."""
    places: set[str] = set()
    todo: list[tuple[str, Sequence[str]]] = [("", pin.submodules)]
    while todo:
        path, listed = todo.pop()
        places.add(path)
        links = [one for one, entry in inside.get(path, {}).items() if entry.mode == SUBMODULE]
        chosen = wanted(listed, links, pin.commit)
        todo += [(joined(path, below), inner) for below, inner in chosen.items()]
    return places


def _tree_of_all(files: Mapping[str, Entry], left_out: AbstractSet[str]) -> str:
    """Hash the whole, with an empty directory where a submodule was left out."""
    return tree_id({**files, **dict.fromkeys(left_out, Entry(TREE, tree_id({})))})


def _hashed(archive: Path, odd_modes: Mapping[str, str]) -> dict[str, Entry]:
    """Hash every file of an archive as git does."""
    found: dict[str, Entry] = {}
    with reading(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            path = member.name.removeprefix(f"{TOP}/")
            if path == member.name or path in found:
                raise _not_the_pinned(archive, f"{member.name} stands there twice, or in the wrong place")
            if member.issym():
                target = member.linkname.encode("utf-8", "surrogateescape")
                found[path] = Entry(LINK, blob_id([target], len(target)))
            elif member.isreg():
                mode = odd_modes.get(path) or (EXECUTABLE if member.mode & 0o100 else FILE)
                source = tar.extractfile(member)
                found[path] = Entry(mode, blob_id(iter(lambda: source.read(_CHUNK), b""), member.size))  # noqa: B023
            else:
                raise _not_the_pinned(archive, f"{path} is neither file nor link")
    return found


def _not_the_pinned(archive: Path, why: str) -> SourceError:
    msg = f"{archive.name} is not the source that was pinned: {why}. Nothing was built from it."
    return SourceError(msg, hint=f"Remove {archive} to fetch it again.")
