"""An HTTP client for public sources: one request at a time, and only for pages that changed.

CacheControl stores every page with its validators and requests it again under a condition (RFC 9110,
section 13.1), so most replies are a 304 without a body. It replaces its files atomically: a run that
was killed loses no page that it already had.
"""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pypi_simple
import requests
from cachecontrol.adapter import CacheControlAdapter
from cachecontrol.caches import FileCache
from urllib3.util import Retry

from builders.sources.urls import mirrored
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_TIMEOUT = (10, 60)  # seconds to connect, and between two packets
_PAUSE = 0.1  # seconds between two requests
_MISSING = {404, 410}


class Client:
    """Fetch pages through a cache.

    Parameters
    ----------
    cache
        Directory of the cached pages.
    mirrors
        URL prefix to the prefix that replaces it; the longest match wins.

    Attributes
    ----------
    fetched, unchanged
        Number of pages, and how many of them had not changed.
    """

    def __init__(self, cache: Path, mirrors: Mapping[str, str] | None = None) -> None:
        self._mirrors = dict(mirrors or {})
        self._session = requests.Session()
        self._session.headers["User-Agent"] = _user_agent()
        retry = Retry(
            total=3,
            connect=1,
            backoff_factor=1,
            status_forcelist=(429, 500, 502, 503, 504),
            respect_retry_after_header=True,
            raise_on_status=False,
        )
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, CacheControlAdapter(FileCache(cache), max_retries=retry))
        self._unreachable: dict[str, str] = {}  # host to reason, so that each host is tried only once
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
                response = self._session.get(url, headers={"Accept": accept}, timeout=_TIMEOUT)
            except requests.RequestException as error:
                self._unreachable[host] = _reason(error)
            else:
                self.unchanged += getattr(response, "from_cache", False)
                response.encoding = "utf-8"
                if response.ok:
                    return response
                if response.status_code in _MISSING:
                    return None
                self._unreachable[host] = f"status {response.status_code} {response.reason}"
        raise EnvironmentLacksError(f"{host} could not be reached: {self._unreachable[host]}.")

    def project_page(self, index: str, project: str) -> pypi_simple.ProjectPage | None:
        """Fetch the page of a project on a package index; return None if the index does not have it.

        Raises
        ------
        EnvironmentLacksError
            The index cannot be reached, or the reply is not a page of a package index.
        """
        response = self.get(f"{index.rstrip('/')}/{project}/", pypi_simple.ACCEPT_ANY)
        if response is None:
            return None
        try:
            return pypi_simple.ProjectPage.from_response(response, project)
        except (ValueError, TypeError, KeyError, pypi_simple.UnsupportedRepoVersionError) as error:
            msg = f"{response.url} is not a page of a package index: {error}."
            raise EnvironmentLacksError(msg) from None


def files_by_version(
    page: pypi_simple.ProjectPage, kinds: Collection[str]
) -> dict[str, list[pypi_simple.DistributionPackage]]:
    """Return the files of some kinds (``sdist``, ``wheel``) by version."""
    by_version: dict[str, list[pypi_simple.DistributionPackage]] = {}
    for file in page.packages:
        if file.version and file.package_type in kinds:
            by_version.setdefault(file.version, []).append(file)
    return by_version


def _user_agent() -> str:
    try:
        return f"rocm-matrix/{version('rocm-matrix')} (catalog update)"
    except PackageNotFoundError:
        return "rocm-matrix (catalog update)"


def _reason(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "timeout"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate was not accepted"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__
