"""Sources, fetched once, checked by hash, and unpacked safely."""

from __future__ import annotations

import ast
import os
import sys
import zlib
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from builders.cache import cache_root
from builders.files import atomic_path, sha256_of
from builders.run import output_of
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from pathlib import Path

    from pypi_simple import ProjectPage

    from resolver.facts.schema import Sdist

_TIMEOUT = (10, 60)  # seconds to connect and between two packets
_CHUNK = 2**18


class HashMismatchError(MatrixError):
    """A file is not the one that was pinned."""

    id: ClassVar[str] = "hash-mismatch"


class SourceError(MatrixError):
    """A source cannot be had or cannot be unpacked."""

    id: ClassVar[str] = "source"


def fetch_sdist(project: str, pin: Sdist, *, offline: bool = False) -> Path:
    """Give the path of a pinned sdist, from the cache or from the index.

    Parameters
    ----------
    project
        Name of the project on the index.
    pin
        File name and SHA-256.
    offline
        Do not use the network.

    Raises
    ------
    HashMismatchError
        The file found is another; it is kept aside under a name that ends in ``.mismatch``.
    EnvironmentLacksError
        The network was needed and could not be used.
    """
    target = cache_root() / "sources" / pin.sha256[:16] / pin.file
    if target.exists():
        _check(target, pin, origin=f"the cache ({target.parent})")
        return target
    if offline:
        msg = f"{pin.file} is not in the cache and the network may not be used."
        raise EnvironmentLacksError(msg, hint="Run the same command once without --offline.")
    index = index_url()
    url = _find(project, pin.file, index)
    with atomic_path(target) as temporary:
        _download(url, temporary)
        _check(temporary, pin, origin=url, keep_as=target.with_name(f"{pin.file}.mismatch"))
    return target


def index_url() -> str:
    """Give the package index that pip is configured to use, or the public one."""
    configured = os.environ.get("PIP_INDEX_URL", "").strip() or _index_in_configuration()
    if configured:
        return configured
    import pypi_simple  # noqa: PLC0415  only where the network is used

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
    import pypi_simple  # noqa: PLC0415  imports slowly, and only where the network is used
    import requests  # noqa: PLC0415

    try:
        with pypi_simple.PyPISimple(endpoint=index) as client:
            return client.get_project_page(project, timeout=_TIMEOUT)
    except pypi_simple.NoSuchProjectError:
        msg = f"The index {_shown(index)} has no project {project}."
        raise SourceError(msg, hint="Is pip configured for an index that mirrors only a part?") from None
    except pypi_simple.UnsupportedContentTypeError as error:
        msg = f"{_shown(index)} is no package index: it answers with {error.content_type}."
        raise SourceError(msg, hint="Look at pip's setting of index-url.") from None
    except requests.RequestException as error:
        raise _failed(index, error) from None


def _find(project: str, file: str, index: str) -> str:
    for package in project_page(project, index).packages:
        if package.filename == file:
            return str(package.url)
    msg = f"The index {_shown(index)} does not have {file}."
    raise SourceError(msg, hint="It may have been removed there; another mirror may still have it.")


def _download(url: str, target: Path) -> None:
    import requests  # noqa: PLC0415
    import urllib3  # noqa: PLC0415

    # As it is: some servers call a .tar.gz an encoding, which would be taken off on the way.
    as_it_is = {"Accept-Encoding": "identity"}
    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT, headers=as_it_is) as response:
            response.raise_for_status()
            with target.open("wb") as sink:
                for chunk in response.raw.stream(_CHUNK, decode_content=False):
                    sink.write(chunk)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _failed(url, error) from None


def _check(path: Path, pin: Sdist, *, origin: str, keep_as: Path | None = None) -> None:
    found = sha256_of(path)
    if found == pin.sha256:
        return
    aside = keep_as or path.with_name(f"{path.name}.mismatch")
    path.replace(aside)
    msg = (
        f"{pin.file} from {_shown(origin)} is not the file that was pinned; nothing was built from it.\n"
        f"  wanted sha256 {pin.sha256}\n  found  sha256 {found}\n  kept aside as {aside}"
    )
    raise HashMismatchError(msg, hint="Look at that file before you trust its origin again, then retry.")


def _failed(url: str, error: Exception) -> MatrixError:
    """Say what went wrong with the network, as far as it got."""
    import requests  # noqa: PLC0415
    import urllib3  # noqa: PLC0415

    if isinstance(error, requests.HTTPError) and error.response is not None:
        msg = f"{_shown(url)} answered {error.response.status_code} {error.response.reason}."
        return SourceError(msg, hint="It may have been removed there; another mirror may still have it.")
    if isinstance(error, urllib3.exceptions.HTTPError):
        msg = f"The transfer of {_shown(url)} broke off; nothing of it was kept."
        return EnvironmentLacksError(msg, hint="Run the same command again.")
    msg = f"{_shown(url)} could not be reached: {type(error).__name__}."
    hint = "Is there network here? On a compute node, fetch on a login node first."
    return EnvironmentLacksError(msg, hint=hint)


def _shown(url: str) -> str:
    """Leave a user's password out of messages."""
    parts = urlsplit(url)
    if parts.hostname and "@" in parts.netloc:
        return url.replace(parts.netloc, parts.netloc.rpartition("@")[2])
    return url


def unpack_sdist(archive: Path, target: Path) -> Path:
    """Unpack an sdist and give its top directory.

    Members that would land outside the target, links that lead out of it and device files are
    refused (PEP 706's ``data`` filter).

    Raises
    ------
    SourceError
        The archive is damaged, or holds more or less than one top directory.
    """
    if sys.version_info >= (3, 12):
        import tarfile  # noqa: PLC0415
    else:  # Python 3.11.0 to 3.11.3 have no extraction filters
        import backports.tarfile as tarfile  # noqa: PLC0415, PLR0402  has no types, and so is no attribute

    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        msg = f"{archive.name} cannot be unpacked: {error}"
        raise SourceError(msg, hint=f"Remove {archive} to fetch it again.") from None
    tops = list(target.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        msg = f"{archive.name} is no sdist: it holds {len(tops)} things at its top, not one directory."
        raise SourceError(msg)
    return tops[0]
