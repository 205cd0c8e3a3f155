"""Pages in the cache: the sorted releases of a project, whose files are parsed when they are needed.

A page has up to 10,000 files, of which resolving needs a few. So a cached page consists of a token, the
length of the header, the header, and the part of the page about each release, as the server sent it. Opening
a page takes one read of its beginning.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.index_client import pages
from builders.index_client.pages import ACTIVE, Form
from builders.storage.files import temporary_sibling

if TYPE_CHECKING:
    from builders.index_client.direct import Reference
    from resolver.indexes import File

_TOKEN = 16  # random bytes at the beginning, which differ in a replaced file
_START = _TOKEN + 4
_FIRST_READ = 1 << 15  # bytes; enough for most headers
_WINDOW = 1 << 17  # bytes of a later read: a search goes from newer to older versions


class Page(msgspec.Struct, array_like=True, gc=False):
    """The facts about a page, without its files."""

    url: str
    """The requested URL, without user and password."""
    etag: str = ""
    modified: str = ""
    """Validators for a conditional request (RFC 9110, section 13.1)."""
    exists: bool = False
    """Whether the index has the project."""
    location: str = ""
    """URL of the page after redirects."""
    index: str = ""
    form: Form = "json"
    status: str = ACTIVE
    versions: list[str] = []
    """The versions, newest first; `sizes` has the number of bytes about each."""
    sizes: list[int] = []


_encoder = msgspec.msgpack.Encoder()
_page_decoder = msgspec.msgpack.Decoder(Page)


class StoredPage:
    """A page in the cache, and its age in seconds when it was read; for the rest see `Page`."""

    __slots__ = (
        "_head", "_page", "_path", "_start", "_window",
        "age", "etag", "exists", "modified", "status", "versions",
    )  # fmt: skip

    def __init__(self, path: Path, head: bytes, page: Page, start: int, age: float = 0.0) -> None:
        self.age = age
        self._path = path
        self._head = head
        self._page = page
        self._start = start
        self._window = (0, b"")
        self.etag, self.modified = page.etag, page.modified
        self.exists, self.status, self.versions = page.exists, page.status, page.versions

    def files(self, number: int) -> tuple[File, ...]:
        """Return the files of a version by its position in `Page.versions`, wheels first.

        If another process has replaced the page, the result is from the new page, and may be empty.
        """
        start = self._start + sum(self._page.sizes[:number])
        part = self._read(start, start + self._page.sizes[number])
        if part is not None:
            page = self._page
            return pages.files(part, page.form, page.location, page.index)
        version = self.versions[number]
        other = read(self._path, self._page.url)
        if other is None or version not in other.versions:
            return ()
        return other.files(other.versions.index(version))

    def _read(self, start: int, end: int) -> bytes | None:
        """Return a part of the stored page; None if it was replaced or removed."""
        if end <= len(self._head):
            return self._head[start:end]
        offset, data = self._window
        if not offset <= start <= end <= offset + len(data):
            try:
                with self._path.open("rb", buffering=0) as source:
                    if source.read(_TOKEN) != self._head[:_TOKEN]:
                        return None
                    source.seek(start)
                    data = source.read(max(end - start, _WINDOW))
            except FileNotFoundError:
                return None
            offset = start
            self._window = (offset, data)
        return data[start - offset : end - offset]


NOTHING = StoredPage(Path(), b"", Page(""), 0)
"""A project that an index does not have."""


def write(path: Path, page: Page, releases: list[tuple[str, bytes]]) -> StoredPage:
    """Replace a page in the cache; a damaged file counts as missing, so it is not flushed to disk."""
    page.versions = [version for version, _ in releases]
    page.sizes = [len(part) for _, part in releases]
    header = _encoder.encode(page)
    parts = [part for _, part in releases]
    content = b"".join([os.urandom(_TOKEN), len(header).to_bytes(4), header, *parts])
    is_stored = replace(path, content)
    return StoredPage(path, content[:_FIRST_READ] if is_stored else content, page, _START + len(header))


def read(path: Path, url: str) -> StoredPage | None:
    """Return the cached page of a URL; None if it is missing or damaged."""
    try:
        with path.open("rb", buffering=0) as source:
            head = source.read(_FIRST_READ)
            start = _START + int.from_bytes(head[_TOKEN:_START])
            if start > len(head):
                head += source.read(start - len(head))
            status = os.fstat(source.fileno())
        page = _page_decoder.decode(memoryview(head)[_START:start])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if page.url != url or len(page.versions) != len(page.sizes) or start + sum(page.sizes) != status.st_size:
        return None
    return StoredPage(path, head, page, start, abs(time.time() - status.st_mtime))


def replace(path: Path, content: bytes) -> bool:
    """Replace a file atomically; return whether the cache allows it, which may be read-only, or full."""
    try:
        with temporary_sibling(path) as temporary:
            temporary.write_bytes(content)
            temporary.replace(path)
    except OSError:
        return False
    return True


def conditions(known: StoredPage | Reference | None) -> dict[str, str]:
    """Return the headers with which a server replies only if what is known of a URL has changed."""
    headers = {"If-None-Match": known.etag, "If-Modified-Since": known.modified} if known else {}
    return {name: text for name, text in headers.items() if text}


def age(path: Path) -> float | None:
    """Return the seconds since a file was written; None if it does not exist."""
    try:
        return abs(time.time() - path.stat().st_mtime)
    except OSError:
        return None
