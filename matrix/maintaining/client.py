"""An HTTP client for public sources: one request at a time, with a cache.

Every page is stored with its validators and requested again conditionally (RFC 9110, section 13.1), so most
replies are a 304 without a body. Files are replaced atomically, so no page is lost if a run is killed.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from builders.constants import MISSING_CODES
from builders.index_client import pages
from builders.index_client.stored import replace
from builders.network.transport import Transport
from builders.network.urls import RequestError, mirrored
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from matrix.maintaining import CatalogUpdate
    from resolver.indexes import File

_PAUSE = 0.1  # seconds between two requests
_UNCHANGED = 304

Releases = dict[str, list["File"]]
"""The files of a project by version, oldest first; without wheels for systems other than Linux."""


class FetchedPage(msgspec.Struct):
    """A page, as it is stored in the cache."""

    url: str
    """Its URL after redirects."""
    kind: str
    """Its content type."""
    etag: str
    modified: str
    content: bytes

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")


class Client:
    """Fetch pages through a cache.

    `mirrors` maps URL prefixes to their replacement; the longest match takes precedence. `answered` is
    whether any server replied, `fetched` the number of pages, `unchanged` that of unchanged ones among them.
    """

    def __init__(self, cache: Path, mirrors: Mapping[str, str] | None = None) -> None:
        self._cache = cache
        self._mirrors = dict(mirrors or {})
        self._transport = Transport((), {})
        self._unreachable: dict[str, str] = {}  # the error by host; each host is tried only once
        self.answered = False
        self.fetched = 0
        self.unchanged = 0

    def get(self, url: str, accept: str = "*/*") -> FetchedPage | None:
        """Fetch a page; return None if the source does not have it.

        Raise `EnvironmentLacksError` if the host cannot be reached, or replied with an error.
        """
        url = mirrored(url, self._mirrors)
        host = urlsplit(url).netloc.rpartition("@")[2]
        path = self._cache / f"{hashlib.sha256(url.encode()).hexdigest()}.msgpack"
        stored = _read(path)
        headers = {"Accept": accept}
        if stored is not None:
            validators = {"If-None-Match": stored.etag, "If-Modified-Since": stored.modified}
            headers |= {name: text for name, text in validators.items() if text}
        if host not in self._unreachable:
            if self.fetched:
                time.sleep(_PAUSE)
            self.fetched += 1
            try:
                response, content = self._transport.page(url, headers)
            except RequestError as error:
                self._unreachable[host] = f"could not be reached: {error}"
            else:
                code = response.status_code
                self.answered |= response.ok or code in MISSING_CODES
                if code == _UNCHANGED and stored is not None:
                    self.unchanged += 1
                    return stored
                if response.ok:
                    get = response.headers.get
                    etag, modified = get("ETag", ""), get("Last-Modified", "")
                    page = FetchedPage(response.url, get("Content-Type", ""), etag, modified, content)
                    if etag or modified:
                        replace(path, msgspec.msgpack.encode(page))
                    return page
                if code in MISSING_CODES:
                    return None
                self._unreachable[host] = f"replied {code} {response.reason}"
        raise EnvironmentLacksError(f"{host} {self._unreachable[host]}.")

    def document(self, url: str, update: CatalogUpdate) -> str | None:
        """Return the text of a page; None if it is gone or cannot be fetched, which the update records."""
        try:
            page = self.get(url)
        except EnvironmentLacksError as error:
            update.unreachable.append((url, error.message))
            return None
        if page is None:
            update.remarks.append(f"{url} no longer exists.")
            return None
        return page.text

    def projects(self, index: str, *, missing_ok: bool = False) -> list[str]:
        """Return the names of the projects on a package index."""
        page = self.get(f"{index.rstrip('/')}/", pages.ACCEPT)
        if page is None and not missing_ok:
            raise EnvironmentLacksError(f"{index} does not exist.")
        try:
            return pages.projects(page.content, page.kind) if page else []
        except pages.PageError as error:
            raise EnvironmentLacksError(f"{index} is not a package index: {error}.") from None

    def releases(self, index: str, project: str) -> Releases | None:
        """Fetch the page of a project on a package index; return None if the index does not have it."""
        page = self.get(f"{index.rstrip('/')}/{project}/", pages.ACCEPT)
        if page is None:
            return None
        try:
            releases = pages.releases(page.content, page.kind, page.url, project)
        except pages.PageError as error:
            raise EnvironmentLacksError(f"{page.url} is not a page of a package index: {error}.") from None
        return {version: pages.files(rows, page.url, index) for version, rows in reversed(releases)}


def wheels_of(releases: Releases | None) -> Releases:
    """Return the wheels of a project by version."""
    return {
        version: wheels
        for version, files in (releases or {}).items()
        if (wheels := [file for file in files if file.name.endswith(".whl")])
    }


def first_upload(files: Iterable[File]) -> datetime.date | None:
    """Return the day of the first upload; None if the index does not have the upload times."""
    times = [file.uploaded[:10] for file in files if file.uploaded]
    return datetime.date.fromisoformat(min(times)) if times else None


def _read(path: Path) -> FetchedPage | None:
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.msgpack.decode(path.read_bytes(), type=FetchedPage)
    return None
