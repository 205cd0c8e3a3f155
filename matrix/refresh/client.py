"""An HTTP client for public sources: one request at a time, with a cache.

CacheControl stores every page with its validators and requests it again conditionally (RFC 9110, section
13.1), so most replies are a 304 without a body. It replaces its files atomically, so no cached page is lost
if a run is killed.
"""

from __future__ import annotations

import datetime
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import pypi_simple
import requests
from cachecontrol.adapter import CacheControlAdapter
from cachecontrol.caches import FileCache

from builders.constants import MISSING_CODES
from builders.urls import mirrored
from builders.web import TIMEOUT, failure_reason, new_session
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from matrix.refresh import CatalogUpdate

_PAUSE = 0.1  # seconds between two requests
_Page = TypeVar("_Page", pypi_simple.IndexPage, pypi_simple.ProjectPage)


class Client:
    """Fetch pages through a cache.

    Parameters
    ----------
    cache
        Directory of the cached pages.
    mirrors
        Maps URL prefixes to their replacement; the longest match takes precedence.

    Attributes
    ----------
    answered
        Whether any server replied.
    fetched, unchanged
        Number of fetched pages, and number of unchanged pages among them.
    """

    def __init__(self, cache: Path, mirrors: Mapping[str, str] | None = None) -> None:
        self._mirrors = dict(mirrors or {})
        self._session = new_session("catalog update", partial(CacheControlAdapter, FileCache(cache)))
        self._unreachable: dict[str, str] = {}  # the error by host; each host is tried only once
        self.answered = False
        self.fetched = 0
        self.unchanged = 0

    def get(self, url: str, accept: str = "*/*") -> requests.Response | None:
        """Fetch a page; return None if the source does not have it.

        Raises
        ------
        EnvironmentLacksError
            The host cannot be reached, or replied with an error.
        """
        url = mirrored(url, self._mirrors)
        host = urlsplit(url).netloc.rpartition("@")[2]
        if host not in self._unreachable:
            if self.fetched:
                time.sleep(_PAUSE)
            self.fetched += 1
            try:
                response = self._session.get(url, headers={"Accept": accept}, timeout=TIMEOUT)
            except requests.RequestException as error:
                self._unreachable[host] = f"could not be reached: {failure_reason(error)}"
            else:
                self.unchanged += getattr(response, "from_cache", False)
                response.encoding = "utf-8"
                if response.ok or response.status_code in MISSING_CODES:
                    self.answered = True
                    return response if response.ok else None
                self._unreachable[host] = f"replied {response.status_code} {response.reason}"
        raise EnvironmentLacksError(f"{host} {self._unreachable[host]}.")

    def document(self, url: str, update: CatalogUpdate) -> str | None:
        """Return the text of a page; None if it is gone or cannot be fetched, which the update records."""
        try:
            response = self.get(url)
        except EnvironmentLacksError as error:
            update.unreachable.append(f"{url}: {error.message}")
            return None
        if response is None:
            update.remarks.append(f"{url} no longer exists.")
            return None
        return response.text

    def projects(self, index: str, *, missing_ok: bool = False) -> list[str]:
        """Return the names of the projects on a package index.

        Raises
        ------
        EnvironmentLacksError
            The index cannot be reached, or does not exist.
        """
        page = self._page(f"{index.rstrip('/')}/", "a package index", pypi_simple.IndexPage.from_response)
        if page is None and not missing_ok:
            raise EnvironmentLacksError(f"{index} does not exist.")
        return [name.strip("/") for name in page.projects] if page else []

    def project_page(self, index: str, project: str) -> pypi_simple.ProjectPage | None:
        """Fetch the page of a project on a package index; return None if the index does not have it.

        Raises
        ------
        EnvironmentLacksError
            The index cannot be reached, or the reply is not a page of a package index.
        """
        parse = partial(pypi_simple.ProjectPage.from_response, project=project)
        return self._page(f"{index.rstrip('/')}/{project}/", "a page of a package index", parse)

    def _page(self, url: str, what: str, parse: Callable[[requests.Response], _Page]) -> _Page | None:
        response = self.get(url, pypi_simple.ACCEPT_ANY)
        if response is None:
            return None
        try:
            return parse(response)
        except (ValueError, TypeError, KeyError, pypi_simple.UnsupportedRepoVersionError) as error:
            raise EnvironmentLacksError(f"{response.url} is not {what}: {error}.") from None


def first_upload(files: Iterable[pypi_simple.DistributionPackage]) -> datetime.date | None:
    """Return the day of the first upload; None if the index does not have the upload times."""
    times = [file.upload_time for file in files if file.upload_time]
    return min(times).astimezone(datetime.UTC).date() if times else None


def files_by_version(
    page: pypi_simple.ProjectPage, kinds: Collection[str]
) -> dict[str, list[pypi_simple.DistributionPackage]]:
    """Return the files of some kinds (``sdist``, ``wheel``) by version."""
    by_version: dict[str, list[pypi_simple.DistributionPackage]] = {}
    for file in page.packages:
        if file.version and file.package_type in kinds:
            by_version.setdefault(file.version, []).append(file)
    return by_version
