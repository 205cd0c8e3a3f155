"""Sources in git: a pinned commit with its submodules, from the cache or from where it is."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from builders.cache import cache_root
from builders.files import atomic_path, exclusive_lock, write_atomic
from builders.io_errors import explain_cache_errors
from builders.sources.archive import Part, Record, joined, record_of, verify, write_archive
from builders.sources.failures import OFFLINE_HINT, shown
from builders.sources.repository import Repository
from builders.sources.submodules import checked_url, submodule_url, wanted
from builders.sources.trees import SUBMODULE, parse_listing
from resolver.errors import EnvironmentLacksError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from resolver.facts.schema import Git


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source from git in the cache."""

    archive: Path
    record: Record
    fetched: bool
    """Whether the network was used for it."""


def fetch_git(pin: Git, *, offline: bool = False, mirrors: Mapping[str, str] | None = None) -> Checkout:
    """Give a pinned commit with its submodules, from the cache or from where it is.

    Parameters
    ----------
    pin
        URL, commit, and which submodules (see `builders.sources.submodules.wanted`).
    offline
        Do not use the network.
    mirrors
        URL prefix to what is asked instead, also for submodules.

    Raises
    ------
    SourceError
        There is no such commit, what is there is refused, or the cache does not hold what it should.
    EnvironmentLacksError
        The network or git was needed and could not be used, or the cache cannot be written.
    """
    place = _record_place(pin)
    found = _cached(place, pin)
    if found is not None:
        return found
    if offline:
        msg = f"{shown(pin.url)} at {pin.commit} is not in the cache and the network may not be used."
        raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
    with explain_cache_errors(), exclusive_lock(place.with_suffix(".lock")):
        found = _cached(place, pin)  # by another run while this one waited
        if found is not None:
            return found
        return _fetch(pin, place, mirrors or {})


def _record_place(pin: Git) -> Path:
    said = json.dumps([pin.url, pin.commit, sorted(pin.submodules)])
    return cache_root() / "sources" / "git" / f"{hashlib.sha256(said.encode()).hexdigest()[:32]}.json"


def _archive_place(tree: str) -> Path:
    return cache_root() / "sources" / "git" / f"{tree}.tar.zst"


def _cached(place: Path, pin: Git) -> Checkout | None:
    """Give what the cache has, proven; None if it has nothing."""
    try:
        record = msgspec.json.decode(place.read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    archive = _archive_place(record.tree)
    if not archive.exists():
        return None
    try:
        verify(archive, record, pin)
    except SourceError as error:
        with suppress(OSError):  # a cache that is only read
            place.unlink()
            archive.replace(archive.with_name(f"{archive.name}.mismatch"))
        raise SourceError(error.message, hint="It was moved aside; run the same command again.") from None
    return Checkout(archive, record, fetched=False)


def _fetch(pin: Git, place: Path, mirrors: Mapping[str, str]) -> Checkout:
    parts: list[Part] = []
    used = False
    todo: list[tuple[str, str, str, Sequence[str]]] = [("", checked_url(pin.url), pin.commit, pin.submodules)]
    while todo:
        path, url, commit, listed = todo.pop()
        repository = Repository(url)
        used |= repository.fetch(commit, mirrors)
        where = f"{shown(url)} at {commit}"
        part = Part(path, repository, commit, parse_listing(repository.listing(commit), where))
        parts.append(part)
        links = {one: entry.id for one, entry in part.entries.items() if entry.mode == SUBMODULE}
        chosen = wanted(listed, links, where)
        urls = repository.submodules(commit) if chosen else {}
        for below, inner in chosen.items():
            if below not in urls:
                msg = f"{where}: .gitmodules does not say where the submodule {below} is to be had."
                raise SourceError(msg, hint="Is the commit the right one? git could not fetch it, either.")
            address = submodule_url(urls[below], url, f"{where}, submodule {below}")
            todo.append((joined(path, below), address, links[below], inner))
    return _pack(pin, place, sorted(parts, key=lambda part: part.path), fetched=used)


def _pack(pin: Git, place: Path, parts: Sequence[Part], *, fetched: bool) -> Checkout:
    record = record_of(pin, parts)
    archive = _archive_place(record.tree)
    with atomic_path(archive) as temporary:
        pointers = write_archive(temporary, parts, record)
        verify(temporary, record, pin)
    record = msgspec.structs.replace(record, large_files=tuple(sorted(pointers)))
    write_atomic(place, msgspec.json.format(msgspec.json.encode(record), indent=1).decode())
    return Checkout(archive, record, fetched=fetched)
