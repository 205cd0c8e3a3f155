"""Pages in the cache: the versions of a project, and the files of each, decoded when they are looked at.

A page has up to 10,000 files, of which resolving needs a few. So a cached page has one line of JSON about
itself, with its versions, and then one for each version, with a row for each of its files. The first read
takes the versions and the newest files. The others are read when an older release is looked at.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.index_client import pages
from builders.storage.files import temporary_sibling
from resolver.errors import EnvironmentLacksError
from resolver.indexes import File, Metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIRST_READ = 1 << 14  # bytes; enough for the versions of most projects with the files of the newest
_WINDOW = 1 << 17  # bytes of a later read: a search goes from newer to older versions


class Release(msgspec.Struct, gc=False):
    """A version of a project; its files are those on its page, and then `others`."""

    version: str
    page: Page
    number: int
    """Its position in the page."""
    others: tuple[Release, ...] = ()
    """The same version on other indexes, in order of preference."""

    @property
    def files(self) -> Sequence[File]:
        """The files, wheels first; of files with the same name, the first, with a time if one has it."""
        files = self.page.files(self.number)
        if not self.others:
            return files
        by_name = {file.name: file for file in files}
        for other in self.others:
            for file in other.files:
                known = by_name.setdefault(file.name, file)
                if file.uploaded and not known.uploaded and known.sha256 == file.sha256:
                    by_name[file.name] = msgspec.structs.replace(known, uploaded=file.uploaded)
        return sorted(by_name.values(), key=lambda file: not file.name.endswith(".whl"))


class Page(msgspec.Struct, array_like=True, gc=False):
    """The page of a project; the last values are not in the cache."""

    url: str
    """The requested URL, without user and password."""
    index: str = ""
    """URL of the index, that of all files."""
    etag: str = ""
    modified: str = ""
    """Validators for a conditional request (RFC 9110, section 13.1)."""
    exists: bool = False
    """Whether the index has the project."""
    location: str = ""
    """URL of the page after redirects."""
    versions: list[str] = []
    """Newest first."""
    sizes: list[int] = []
    """Bytes of the rows of each version."""
    age: float = 0.0
    """Seconds since the cache was written."""
    path: str = ""
    window: tuple[int, bytes] = (0, b"")
    """The rows that were read last, and the position of the first of them."""
    decoded: dict[int, Any] = {}
    """The files that were looked at, by the position of their version."""

    def releases(self) -> list[Release]:
        """Return the releases, newest first."""
        return list(map(Release, self.versions, repeat(self), count()))

    def files(self, number: int) -> Sequence[File]:
        """Return the files of a version by its position, wheels first.

        If another process has replaced the page since, they are those of the new page, if that has the
        version. Raise `EnvironmentLacksError` if the page is gone or damaged.
        """
        if number not in self.decoded:
            version = self.versions[number]
            start = sum(self.sizes[:number])
            end = start + self.sizes[number]
            first, rows = self.window
            if not first <= start <= end <= first + len(rows):
                latest = read(self.path, self.url, start, max(end - start, _WINDOW))
                if latest is None:
                    raise _unreadable(self.path)
                if (latest.versions, latest.sizes) != (self.versions, self.sizes):
                    return latest.files(latest.versions.index(version)) if version in latest.versions else ()
                self.window = first, rows = latest.window
            try:
                files = pages.files(rows[start - first : end - first], self.location, self.index)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise _unreadable(self.path) from None
            self.decoded[number] = files
        found: list[File] = self.decoded[number]
        return found


class Reference(msgspec.Struct, frozen=True):
    """The cached facts about a direct reference, with validators for a conditional request."""

    url: str
    file: File
    metadata: Metadata
    etag: str = ""
    modified: str = ""


NOTHING = Page("")
"""A project that an index does not have."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Page)


def listed(releases: Iterable[tuple[str, Sequence[File]]]) -> list[Release]:
    """Return releases that are on no page of an index."""
    versions, files = zip(*releases, strict=True)
    return Page("", versions=[*versions], decoded=dict(enumerate(files))).releases()


def write(path: str, page: Page, releases: Sequence[tuple[str, bytes]]) -> Page:
    """Replace a page in the cache; a damaged file counts as missing, so it is not flushed to disk."""
    page.versions, rows = [version for version, _ in releases], [rows + b"\n" for _, rows in releases]
    page.sizes = [len(one) for one in rows]
    is_stored = replace(Path(path), b"".join([_encoder.encode(page), b"\n", *rows]))
    page.window = 0, b"".join(rows)
    return (is_stored and read(path, page.url)) or page


def read(path: str, url: str, start: int = 0, most: int = 0) -> Page | None:
    """Return the cached page of a URL; None if it is missing or damaged.

    Its window has `most` bytes of rows from position `start`; without them, those in its first bytes.
    """
    try:
        with open(path, "rb", buffering=0) as source:  # noqa: PTH123  a `Path` takes longer than reading
            content = source.read(_FIRST_READ)
            while b"\n" not in content and (more := source.read(_FIRST_READ)):
                content += more
            first = content.index(b"\n") + 1
            window = -first, content  # without a copy of all but the first line
            if most:
                source.seek(first + start)
                window = start, source.read(most)
            status = os.fstat(source.fileno())
        page = _decoder.decode(content[:first])
    except (OSError, ValueError):  # also those of msgspec
        return None
    # Files here are not flushed, so after a crash one may be cut short.
    if page.url != url or first + sum(page.sizes) != status.st_size:
        return None
    page.age, page.path, page.window = abs(time.time() - status.st_mtime), path, window
    return page


def _unreadable(path: str) -> EnvironmentLacksError:
    """Remove a page, which is not usable, and return the error."""
    with suppress(OSError):
        Path(path).unlink()
    return EnvironmentLacksError(
        f"{path} in the cache of package indexes has changed, and cannot be read.",
        hint="Run the command again.",
    )


def replace(path: Path, content: bytes) -> bool:
    """Replace a file atomically; return whether the cache allows it, which may be read-only, or full."""
    try:
        with temporary_sibling(path) as temporary:
            temporary.write_bytes(content)
            temporary.replace(path)
    except OSError:
        return False
    return True


def conditions(known: Page | Reference | None) -> dict[str, str]:
    """Return the headers with which a server replies only if what is known of a URL has changed."""
    headers = {"If-None-Match": known.etag, "If-Modified-Since": known.modified} if known else {}
    return {name: text for name, text in headers.items() if text and text.isprintable()}


def age(path: Path | str) -> float | None:
    """Return the seconds since a file was written; None if it does not exist."""
    try:
        # After a clock was set back, a file from the future must not count as fresh until that time.
        return abs(time.time() - os.stat(path).st_mtime)  # noqa: PTH116  a `Path` takes longer
    except OSError:
        return None
