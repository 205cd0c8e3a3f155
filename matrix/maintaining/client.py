"""An HTTP client for public sources: one request at a time, and one attempt for each host that fails."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builders.constants import MISSING_CODES
from builders.index_client import pages
from builders.network.transport import RequestError, Transport
from builders.network.urls import mirrored
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from requests import Response

    from matrix.maintaining import CatalogUpdate
    from resolver.indexes import File

_PAUSE = 0.1  # seconds between two requests

Releases = dict[str, list["File"]]
"""The files of a project by version, oldest first; without wheels for systems other than Linux."""


class Client:
    """Fetch pages.

    `mirrors` maps URL prefixes to their replacement; the longest match takes precedence. `answered` is
    whether any server replied, `fetched` the number of pages.
    """

    def __init__(self, mirrors: Mapping[str, str] | None = None) -> None:
        self._mirrors = dict(mirrors or {})
        self._transport = Transport((), {})
        self._unreachable: dict[str, str] = {}  # the error by host; each host is tried only once
        self.answered = False
        self.fetched = 0

    def get(self, url: str, accept: str = "*/*") -> tuple[Response, bytes] | None:
        """Fetch a page, and return the response with its content; None if the source does not have it.

        Raise `EnvironmentLacksError` if the host cannot be reached, or replied with an error.
        """
        url = mirrored(url, self._mirrors)
        host = urlsplit(url).netloc.rpartition("@")[2]
        if host not in self._unreachable:
            if self.fetched:
                time.sleep(_PAUSE)
            self.fetched += 1
            try:
                response, content = self._transport.page(url, {"Accept": accept})
            except RequestError as error:
                self._unreachable[host] = f"could not be reached: {error}"
            else:
                code = response.status_code
                self.answered |= response.ok or code in MISSING_CODES
                if response.ok:
                    return response, content
                if code in MISSING_CODES:
                    return None
                self._unreachable[host] = f"replied {code} {response.reason}"
        raise EnvironmentLacksError(f"{host} {self._unreachable[host]}.")

    def text(self, url: str) -> str | None:
        """Return the text of a page; None if the source does not have it; see `get`."""
        page = self.get(url)
        return page and page[1].decode("utf-8", "replace")

    def document(self, url: str, update: CatalogUpdate) -> str | None:
        """Return the text of a page; None if it is gone or cannot be fetched, which the update records."""
        try:
            text = self.text(url)
        except EnvironmentLacksError as error:
            update.unreachable.append((url, error.message))
            return None
        if text is None:
            update.remarks.append(f"{url} no longer exists.")
        return text

    def projects(self, index: str, *, missing_ok: bool = False) -> list[str]:
        """Return the names of the projects on a package index."""
        page = self.get(f"{index.rstrip('/')}/", pages.ACCEPT)
        if page is None:
            if missing_ok:
                return []
            raise EnvironmentLacksError(f"{index} does not exist.")
        response, content = page
        try:
            return pages.projects(content, response.headers.get("Content-Type", ""))
        except pages.PageError as error:
            raise EnvironmentLacksError(f"{index} is not a package index: {error}.") from None

    def releases(self, index: str, project: str) -> Releases | None:
        """Fetch the page of a project on a package index; return None if the index does not have it."""
        page = self.get(f"{index.rstrip('/')}/{project}/", pages.ACCEPT)
        if page is None:
            return None
        response, content = page
        url, kind = response.url, response.headers.get("Content-Type", "")
        try:
            releases = pages.releases(content, kind, url, project)
        except pages.PageError as error:
            raise EnvironmentLacksError(f"{url} is not a page of a package index: {error}.") from None
        return {version: pages.files(rows, url, index) for version, rows in reversed(releases)}


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
