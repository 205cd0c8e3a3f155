"""Source distributions from the package index, fetched once and checked by hash."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from builders.cache import cache_root
from builders.files import atomic_path, sha256_of
from builders.io_errors import explain_cache_errors
from builders.process import output_of
from builders.sources.failures import OFFLINE_HINT, shown
from builders.sources.mirrors import mirrored
from resolver.errors import EnvironmentLacksError, HashMismatchError, MatrixError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pypi_simple import ProjectPage

    from resolver.facts.schema import Sdist

_TIMEOUT = (10, 60)  # seconds to connect and between two packets
_CHUNK = 2**18
_LARGEST = 4 * 2**30  # bytes; the longest sdist known has 0.3 GiB


def fetch_sdist(
    project: str, pin: Sdist, *, offline: bool = False, mirrors: Mapping[str, str] | None = None
) -> Path:
    """Give the path of a pinned sdist, from the cache or from the index.

    Parameters
    ----------
    project
        Name of the project on the index.
    pin
        File name and SHA-256.
    offline
        Do not use the network.
    mirrors
        URL prefix to what is asked instead, for the index and its files.

    Raises
    ------
    HashMismatchError
        The file found is another; it is kept aside under a name that ends in ``.mismatch``.
    SourceError
        The index does not have it.
    EnvironmentLacksError
        The network was needed and could not be used, or the cache cannot be written.
    """
    if Path(pin.file).name != pin.file or pin.file.startswith(".") or not pin.file:
        msg = f"{pin.file!r} is no file name, so it is no sdist."
        raise SourceError(msg, hint="Correct the row of the catalog, and resolve again.")
    target = sdist_place(pin)
    if target.exists():
        _check(target, pin, origin=f"the cache ({target.parent})")
        return target
    if offline:
        msg = f"{pin.file} is not in the cache and the network may not be used."
        raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
    mirrors = mirrors or {}
    index = mirrored(index_url(), mirrors)
    url = mirrored(_find(project, pin.file, index), mirrors)
    with explain_cache_errors(), atomic_path(target) as temporary:
        _download(url, temporary)
        _check(temporary, pin, origin=url, keep_as=target.with_name(f"{pin.file}.mismatch"))
    return target


def sdist_place(pin: Sdist) -> Path:
    """Give the path at which a pinned sdist is or would be in the cache."""
    return cache_root() / "sources" / pin.sha256[:16] / pin.file


def index_url() -> str:
    """Give the package index that pip is configured to use, or the public one."""
    configured = os.environ.get("PIP_INDEX_URL", "").strip() or _index_in_configuration()
    if configured:
        return configured
    import pypi_simple

    return str(pypi_simple.PYPI_SIMPLE_ENDPOINT)


def _index_in_configuration() -> str:
    """Read pip's configuration files with pip itself; what is said for ``install`` wins."""
    found = {}
    for line in output_of([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        if name in {"global.index-url", "install.index-url"}:
            found[name] = str(ast.literal_eval(value))
    return (found.get("install.index-url") or found.get("global.index-url") or "").strip()


def project_page(project: str, index: str) -> ProjectPage:
    """Get the page of a project on an index.

    Raises
    ------
    SourceError
        The index does not have the project, or is none.
    EnvironmentLacksError
        It could not be reached.
    """
    import pypi_simple
    import requests

    local = _local(index)
    if local is not None:
        return _local_page(project, local)
    try:
        with pypi_simple.PyPISimple(endpoint=index) as client:
            return client.get_project_page(project, timeout=_TIMEOUT)
    except pypi_simple.NoSuchProjectError:
        msg = f"The index {shown(index)} has no project {project}."
        raise SourceError(msg, hint="Is pip configured for an index that mirrors only a part?") from None
    except pypi_simple.UnsupportedContentTypeError as error:
        msg = f"{shown(index)} is no package index: it answers with {error.content_type}."
        raise SourceError(msg, hint="Look at pip's setting of index-url.") from None
    except requests.RequestException as error:
        raise _failed(index, error) from None


def _local(url: str) -> Path | None:
    """Give the path that a ``file`` address stands for."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _local_page(project: str, index: Path) -> ProjectPage:
    """Read the page of a project from an index on disk."""
    import pypi_simple
    from packaging.utils import canonicalize_name

    page = index / canonicalize_name(project) / "index.html"
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        msg = f"The index {index} has no project {project}: there is no {page}."
        raise SourceError(msg, hint="Does the mirror have it, or only a part of the index?") from None
    return pypi_simple.ProjectPage.from_html(project, text, base_url=page.as_uri())


def _find(project: str, file: str, index: str) -> str:
    for package in project_page(project, index).packages:
        if package.filename == file:
            return str(package.url)
    msg = f"The index {shown(index)} does not have {file}."
    raise SourceError(msg, hint="It may have been removed there; another mirror may still have it.")


def _download(url: str, target: Path) -> None:
    import requests
    import urllib3

    local = _local(url)
    if local is not None:
        try:
            shutil.copyfile(local, target)
        except FileNotFoundError:
            msg = f"There is no file {local}, to which the index or a mirror points."
            raise SourceError(msg, hint="Does the mirror have all files of its index?") from None
        return
    # As it is: some servers call a .tar.gz an encoding, which would be taken off on the way.
    as_it_is = {"Accept-Encoding": "identity"}
    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT, headers=as_it_is) as response:
            response.raise_for_status()
            with target.open("wb") as sink:
                for chunk in response.raw.stream(_CHUNK, decode_content=False):
                    sink.write(chunk)
                    if sink.tell() > _LARGEST:
                        raise _too_long(url)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _failed(url, error) from None


def _check(path: Path, pin: Sdist, *, origin: str, keep_as: Path | None = None) -> None:
    found = sha256_of(path)
    if found == pin.sha256:
        return
    aside = keep_as or path.with_name(f"{path.name}.mismatch")
    try:
        path.replace(aside)
    except OSError:  # a cache that is only read
        aside = path
    msg = (
        f"{pin.file} from {shown(origin)} is not the file that was pinned; nothing was built from it.\n"
        f"  wanted sha256 {pin.sha256}\n  found  sha256 {found}\n  kept aside as {aside}"
    )
    raise HashMismatchError(msg, hint="Look at that file before you trust its origin again, then retry.")


def _too_long(url: str) -> SourceError:
    msg = f"{shown(url)} does not end after {_LARGEST // 2**30} GiB; nothing of it was kept."
    return SourceError(msg, hint="No sdist is that long. Look at the index or mirror it came from.")


def _failed(url: str, error: Exception) -> MatrixError:
    """Say what went wrong with the network, as far as it got."""
    import requests
    import urllib3

    if isinstance(error, requests.HTTPError) and error.response is not None:
        msg = f"{shown(url)} answered {error.response.status_code} {error.response.reason}."
        return SourceError(msg, hint="It may have been removed there; another mirror may still have it.")
    if isinstance(error, urllib3.exceptions.HTTPError):
        msg = f"The transfer of {shown(url)} broke off; nothing of it was kept."
        return EnvironmentLacksError(msg, hint="Run the same command again.")
    msg = f"{shown(url)} could not be reached: {type(error).__name__}."
    hint = "Is there network here? On a compute node, fetch on a login node first."
    return EnvironmentLacksError(msg, hint=hint)
