"""Pages of package indexes, as servers send them.

A page is JSON (PEP 691, PEP 700) or HTML (PEP 503), with the keys or attributes of PEP 592 (yanked),
PEP 658 and PEP 714 (metadata files), PEP 792 (project status) and ``requires-python``.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builders.index_client.stored import ACTIVE
from resolver.indexes import File

if TYPE_CHECKING:
    from collections.abc import Iterable

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_QUARANTINED = "quarantined"
_SDIST_ENDINGS = (".tar.gz", ".zip", ".tgz", ".tar.bz2", ".tar.xz")
_ENDINGS = (".whl", *_SDIST_ENDINGS)
_ANCHOR = '<a href="'
_ATTRIBUTE = re.compile(r" [a-z-]+=")
_UNUSUAL = re.compile(r"<(?:base\s|!--)", re.IGNORECASE)
_OTHER_SYSTEMS = ("win", "macosx", "ios", "android")
_META = re.compile(r"""<meta\s+name="pypi:([a-z-]+)"\s+content="([^"<>]*)"\s*/?>""", re.IGNORECASE)


class PageError(ValueError):
    """A page cannot be used; the message is a clause without a full stop."""


class _Hashes(msgspec.Struct, frozen=True, gc=False):
    sha256: str = ""


class _JsonFile(msgspec.Struct, rename="kebab", gc=False):
    filename: str
    url: str
    hashes: _Hashes = _Hashes()
    size: int | None = None
    upload_time: str | None = None
    requires_python: str | None = None
    yanked: str | bool | None = False
    core_metadata: _Hashes | bool | None = None
    data_dist_info_metadata: _Hashes | bool | None = None
    dist_info_metadata: _Hashes | bool | None = None


class _Meta(msgspec.Struct, frozen=True, rename="kebab"):
    api_version: str = "1.0"


class _Status(msgspec.Struct, frozen=True):
    status: str = ACTIVE


class _JsonPage(msgspec.Struct, rename="kebab"):
    files: list[_JsonFile]
    meta: _Meta = _Meta()
    project_status: _Status = _Status()


_json_decoder = msgspec.json.Decoder(_JsonPage)


def parse(content: bytes, content_type: str, url: str, index: str) -> tuple[list[File], str]:
    """Return the files on a page in its order, and the status of the project.

    Parameters
    ----------
    content_type
        As the server declares it.
    url
        Where the page was found; relative links are resolved against it.
    index
        The `File.index` of the files.

    Raises
    ------
    PageError
        The page is not one of a package index.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith(("/json", "+json")):
        files, status = _parse_json(content, url, index)
    elif kind.endswith(("/html", "+html", "/xhtml+xml")):
        files, status = _parse_html(content, url, index)
    else:
        msg = f"its content type is {kind or 'missing'}, neither JSON nor HTML"
        raise PageError(msg)
    return ([] if status == _QUARANTINED else files), status


def releases(project: str, files: Iterable[File]) -> list[tuple[str, list[File]]]:
    """Return the versions of a project, newest first, and the files of each, wheels first.

    Files of other projects, and those with an invalid name or version, are skipped; so are wheels for other
    systems than Linux, which are most files of some projects, but not their versions.
    """
    versions: dict[str, Version | None] = {}
    by_version: dict[Version, tuple[str, list[File]]] = {}
    seen: set[str] = set()
    for file in files:
        text = version_in(file.name, project)
        if text is None or file.name in seen:
            continue
        seen.add(file.name)
        if text not in versions:
            versions[text] = _version(text)
        version = versions[text]
        if version is not None:
            rows = by_version.setdefault(version, (text, []))[1]
            if not is_foreign(file.name):
                rows.append(file)
    return [
        (text, sorted(rows, key=lambda file: (not file.name.endswith(".whl"), file.name)))
        for _, (text, rows) in sorted(by_version.items(), key=lambda item: item[0], reverse=True)
    ]


def is_foreign(filename: str) -> bool:
    """Return whether a wheel is only for other systems than Linux.

    Examples
    --------
    >>> is_foreign("numpy-2.0.0-cp312-cp312-win_amd64.whl")
    True
    >>> is_foreign("numpy-2.0.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    False
    """
    return _is_foreign_tag(filename.rpartition("-")[2])


@lru_cache(maxsize=1000)
def _is_foreign_tag(tag: str) -> bool:
    return tag.endswith(".whl") and all(part.startswith(_OTHER_SYSTEMS) for part in tag[:-4].split("."))


def version_in(filename: str, project: str) -> str | None:
    """Return the version in the name of a wheel or sdist; None if it is not one of that project.

    Parameters
    ----------
    project
        Normalized name.

    Examples
    --------
    >>> version_in("Flash_Attn-2.8.3+rocm6.4-cp312-cp312-linux_x86_64.whl", "flash-attn")
    '2.8.3+rocm6.4'
    >>> version_in("python-dateutil-2.9.tar.gz", "python-dateutil")
    '2.9'
    >>> version_in("python-dateutil-2.9.tar.gz", "python")
    'dateutil-2.9'
    """
    if filename.endswith(".whl"):
        parts = filename[:-4].split("-")
        if len(parts) == 6:  # noqa: PLR2004  with a build tag
            if not parts[2][:1].isdigit():
                return None
        elif len(parts) != 5:  # noqa: PLR2004
            return None
        return parts[1].replace("_", "-") if _is_name(parts[0], project) and all(parts) else None
    ending = next((ending for ending in _SDIST_ENDINGS if filename.endswith(ending)), "")
    if not ending:
        return None
    stem = filename.removesuffix(ending)
    cut = stem.find("-")
    while cut != -1:
        if _is_name(stem[:cut], project):
            return stem[cut + 1 :]
        cut = stem.find("-", cut + 1)
    return None


def projects_in(filename: str) -> list[str]:
    """Return the normalized names of the projects that a file may belong to.

    Examples
    --------
    >>> projects_in("torch_scatter-2.1-cp312-cp312-linux_x86_64.whl")
    ['torch-scatter']
    >>> projects_in("python-dateutil-2.9.tar.gz")
    ['python-dateutil', 'python']
    """
    if filename.endswith(".whl"):
        return [canonicalize_name(filename.partition("-")[0])]
    parts = filename.split("-")
    return [canonicalize_name("-".join(parts[:count])) for count in range(len(parts) - 1, 0, -1)]


def _is_name(text: str, project: str) -> bool:
    return text == project or (len(text) >= len(project) and canonicalize_name(text) == project)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _parse_json(content: bytes, url: str, index: str) -> tuple[list[File], str]:
    try:
        page = _json_decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        msg = f"it is not valid JSON of a package index ({error})"
        raise PageError(msg) from None
    _check_api(page.meta.api_version)
    resolve = _Resolver(url)
    files = []
    for row in page.files:
        metadata = row.core_metadata
        if metadata is None:
            metadata = row.data_dist_info_metadata
        if metadata is None:
            metadata = row.dist_info_metadata
        hashed = isinstance(metadata, _Hashes)
        yanked = row.yanked
        files.append(
            File(
                row.filename,
                resolve(row.url.partition("#")[0]),
                row.hashes.sha256.lower(),
                row.size or 0,
                index,
                row.requires_python or "",
                row.upload_time or "",
                yanked if isinstance(yanked, str) and yanked else "" if yanked is True else None,
                hashed or metadata is True,
                metadata.sha256.lower() if isinstance(metadata, _Hashes) else "",
            )
        )
    return files, page.project_status.status


def _parse_html(content: bytes, url: str, index: str) -> tuple[list[File], str]:
    text = content.decode("utf-8", "replace")
    meta = dict(_META.findall(text))
    _check_api(meta.get("repository-version", "1.0"))
    status = meta.get("project-status", ACTIVE)
    anchors = text.split(_ANCHOR)[1:]
    lower = text.lower()
    if lower.count("<a ") + lower.count("<a\n") == len(anchors) and not _UNUSUAL.search(text):
        try:
            return _usual_links(anchors, url, index), status
        except _UnusualError:
            pass
    return _parse_unusual_html(text, url, index), status


def _usual_links(anchors: Iterable[str], url: str, index: str) -> list[File]:
    """Return the files of anchors of the form ``<a href="URL" NAME="VALUE" ...>``, all lower case.

    This is a tenth of the work of an HTML parser, which counts where pages have thousands of links.

    Parameters
    ----------
    anchors
        What follows ``<a href="``.
    """
    resolve = _Resolver(url)
    unescape = lru_cache(html.unescape)
    files = []
    for anchor in anchors:
        link, _, rest = anchor.partition('"')
        location, _, fragment = (html.unescape(link) if "&" in link else link).partition("#")
        name = location.partition("?")[0].rpartition("/")[2]
        if "%" in name:
            name = unquote(name)
        if not name.endswith(_ENDINGS):
            continue
        if is_foreign(name):
            files.append(File(name, location))
            continue
        words = rest.partition(">")[0].split('"')
        attributes = dict(zip(words[:-1:2], words[1::2], strict=False))
        if words[-1].strip() or not all(map(_is_attribute, attributes)):
            raise _UnusualError
        get = attributes.get
        requires = get(" data-requires-python=", "")
        yanked = get(" data-yanked=")
        metadata = get(" data-core-metadata=", get(" data-dist-info-metadata="))
        files.append(
            File(
                name,
                resolve(location),
                _sha256(fragment),
                0,
                index,
                unescape(requires) if "&" in requires else requires,
                get(" data-upload-time=", ""),
                None if yanked is None else html.unescape(yanked),
                metadata is not None and metadata != "false",
                _sha256(metadata) if metadata else "",
            )
        )
    return files


@lru_cache(maxsize=100)
def _is_attribute(text: str) -> bool:
    return _ATTRIBUTE.fullmatch(text) is not None


class _UnusualError(Exception):
    """A page is not written as indexes usually write it."""


def _parse_unusual_html(text: str, url: str, index: str) -> list[File]:
    """Parse HTML that is not written as indexes usually write it; this takes much longer."""
    import pypi_simple

    try:
        page = pypi_simple.ProjectPage.from_html("", text, base_url=url)
    except (ValueError, pypi_simple.UnsupportedRepoVersionError) as error:
        raise PageError(str(error).rstrip(".")) from None
    return [
        File(
            package.filename,
            package.url.partition("#")[0],
            package.digests.get("sha256", ""),
            0,
            index,
            package.requires_python or "",
            "",
            (package.yanked_reason or "") if package.is_yanked else None,
            bool(package.has_metadata),
            (package.metadata_digests or {}).get("sha256", ""),
        )
        for package in page.packages
    ]


def _check_api(version: str) -> None:
    if version.partition(".")[0] != "1":
        msg = f"it has version {version} of the API, and only versions 1.x are known"
        raise PageError(msg)


def _sha256(text: str) -> str:
    """Return the hash in ``sha256=...``."""
    if text.startswith("sha256=") and "&" not in text:
        return text[7:].lower()
    return text.partition("sha256=")[2].partition("&")[0].lower()


class _Resolver:
    """Resolve links against the URL of a page; links into the same directory are resolved once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._directories: dict[str, str] = {}

    def __call__(self, link: str) -> str:
        if link.startswith(("https://", "http://")):
            return link
        directory, slash, name = link.rpartition("/")
        if directory not in self._directories:
            self._directories[directory] = urljoin(self._url, f"{directory}{slash}" or "./")
        return self._directories[directory] + name
