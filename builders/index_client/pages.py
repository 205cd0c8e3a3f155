"""Pages of package indexes, as servers send them.

A page is JSON (PEP 691, PEP 700) or HTML (PEP 503), with the keys or attributes of PEP 592 (yanked), PEP 658
and PEP 714 (metadata files), PEP 792 (project status) and ``requires-python``.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import unquote, urljoin

import msgspec
from packaging.version import Version

from resolver.indexes import File
from resolver.requirements import SDIST_ENDINGS, is_name_of, normalize_name, version_in
from resolver.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


T = TypeVar("T")

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_QUARANTINED = "quarantined"
_ENDINGS = (".whl", *SDIST_ENDINGS)
_WEB = ("https://", "http://")
_OTHER_SYSTEMS = ("win", "macosx", "ios", "android")
_LINUX = ("linux_", "manylinux")


class PageError(ValueError):
    """A page cannot be used; the message is a clause without a full stop."""


class Hashes(msgspec.Struct, frozen=True, gc=False):
    """Hashes of a file. A struct, because thousands of small dicts are slower to read and write."""

    sha256: str = ""


class _JsonFile(msgspec.Struct, rename="kebab", omit_defaults=True, gc=False):
    filename: str
    url: str
    hashes: Hashes = Hashes()
    size: int | None = None
    upload_time: str | None = None
    requires_python: str | None = None
    yanked: str | bool | None = False
    core_metadata: Hashes | bool | None = None
    data_dist_info_metadata: Hashes | bool | None = None
    dist_info_metadata: Hashes | bool | None = None


class PageMeta(msgspec.Struct, frozen=True, rename="kebab"):
    """The version of the API that a page follows."""

    api_version: str = "1.0"


class _Status(msgspec.Struct, frozen=True):
    status: str = ""


class _JsonPage(msgspec.Struct, Generic[T], rename="kebab"):
    """The keys of a page that are used; what a server writes into others does not matter."""

    files: list[T]
    meta: PageMeta = PageMeta()
    project_status: _Status = _Status()


class _Listed(msgspec.Struct):
    name: str


class _ProjectList(msgspec.Struct):
    projects: list[_Listed]


_encoder = msgspec.json.Encoder()
_files_decoder = msgspec.json.Decoder(list[_JsonFile])


def releases(content: bytes, content_type: str, url: str, project: str) -> list[tuple[str, bytes]]:
    """Return the versions on the page at `url`, newest first, each with encoded `files`.

    Files of other projects, and those with an invalid name or version, are skipped. Wheels for systems other
    than Linux, which are most files of some projects, are skipped as well, but their versions are kept. So
    are wheels for other machines and for musl, if the version has one for glibc on x86_64. A project in
    quarantine (PEP 792) offers no files. `project` is normalized; if it is empty, all files are in
    one release with an empty version.

    Raise `PageError` if the content is not a page of a package index.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if _is_json(content_type):
        page = _read_json(content)
    elif kind.endswith(("/html", "+html", "/xhtml+xml")):
        page = _read_html(content.decode("utf-8", "replace"), url)
    else:
        raise PageError(f"its content type is {kind or 'missing'}, neither JSON nor HTML")
    if page.meta.api_version.partition(".")[0] != "1":
        raise PageError(f"it has version {page.meta.api_version} of the API, and only versions 1.x are known")
    rows = [] if page.project_status.status == _QUARANTINED else page.files
    named = by_version(((row.filename, row) for row in rows), project) if project else [("", rows)]
    return [(version, _encoder.encode(rows)) for version, rows in named]


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower().endswith(("/json", "+json"))


def projects(content: bytes, content_type: str) -> list[str]:
    """Return the projects on the first page of an index; raise `PageError` if it is none."""
    if _is_json(content_type):
        try:
            return [row.name for row in msgspec.json.decode(content, type=_ProjectList).projects]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PageError(str(error)) from None
    from builders.index_client.html_page import read_html

    _, _, links = read_html(content.decode("utf-8", "replace"))
    names = (_last_segment(unquote(link["href"]).rstrip("/")) for link in links)
    return [name for name in names if name.strip(".")]


def files(rows: bytes, url: str, index: str) -> list[File]:
    """Return the files of a release on the page at `url`, wheels first; `index` is that of the files."""
    is_local = url.startswith("file:")
    by_name: dict[str, File] = {}
    for row in _files_decoder.decode(rows):
        location = row.url.partition("#")[0]
        if not location.startswith(_WEB):
            location = _resolver(url)(location)
            if not is_local and location[:5].lower() == "file:":
                continue  # a server must not name files of this machine
        if row.filename in by_name:
            continue
        metadata = row.core_metadata
        if metadata is None:
            metadata = row.data_dist_info_metadata
        if metadata is None:
            metadata = row.dist_info_metadata
        hashed = isinstance(metadata, Hashes)
        yanked = row.yanked
        by_name[row.filename] = File(
            row.filename,
            location,
            _digest(row.hashes.sha256),
            row.size or 0,
            index,
            row.requires_python or "",
            row.upload_time or "",
            yanked if isinstance(yanked, str) and yanked else "" if yanked is True else None,
            hashed or metadata is True,
            _digest(metadata.sha256) if isinstance(metadata, Hashes) else "",
        )
    names = sorted(by_name)
    wheels = [by_name[name] for name in names if name.endswith(".whl")]
    return wheels + [by_name[name] for name in names if not name.endswith(".whl")]


def wheels_first(file: File) -> tuple[bool, str]:
    """Return a key that sorts wheels first, then by name."""
    return not file.name.endswith(".whl"), file.name


def by_version(parts: Iterable[tuple[str, T]], project: str) -> list[tuple[str, list[T]]]:
    """Return the versions of a project, newest first, each with the values that belong to its file names."""
    by_text: dict[str, tuple[list[T], list[T], list[T]]] = {}
    is_ours = lru_cache(maxsize=None)(partial(is_name_of, project=project))
    for name, part in parts:
        words = name.split("-")
        if len(words) == 5 and name.endswith(".whl"):  # noqa: PLR2004  most files
            text = words[1].replace("_", "-") if is_ours(words[0]) else None
        else:
            text = version_in(name, project)
        if text:
            kinds = by_text.setdefault(text, ([], [], []))
            kind = _kind(words[-1])
            if kind is not None:
                kinds[kind].append(part)
    merged: dict[Version, tuple[str, tuple[list[T], list[T], list[T]]]] = {}
    skipped = 0
    for text, kinds in by_text.items():
        version = version_or_none(text)
        if version is not None:
            known = merged.setdefault(version, (text, kinds))[1]
            if known is not kinds:
                for rows, more in zip(known, kinds, strict=True):
                    rows.extend(more)
        else:
            skipped += sum(map(len, kinds))
    _log_skipped(skipped, "has an invalid version", project)
    newest_first = sorted(merged.items(), key=lambda item: item[0], reverse=True)
    return [(text, (wheels or foreign) + sdists) for _, (text, (wheels, sdists, foreign)) in newest_first]


def _log_skipped(count: int, reason: str, page: str) -> None:
    if count:
        from logging import getLogger

        getLogger(__name__).info("Skipped a file that %s, %d times: %s", reason, count, page)


@lru_cache(maxsize=1000)
def _kind(ending: str) -> int | None:
    """Return the kind of a file by the ending of its name; None for a wheel of other systems than Linux.

    0 is a wheel that a Linux with glibc on x86_64 may install, 1 no wheel, 2 a wheel for any other Linux.
    """
    if not ending.endswith(".whl"):
        return 1
    platforms = ending[:-4].lower().split(".")
    if any(one == "any" or (one.startswith(_LINUX) and one.endswith("_x86_64")) for one in platforms):
        return 0
    return None if all(one.startswith(_OTHER_SYSTEMS) for one in platforms) else 2


def projects_in(filename: str) -> list[str]:
    """Return the normalized names of the projects that a file may belong to.

    >>> projects_in("torch_scatter-2.1-cp312-cp312-linux_x86_64.whl")
    ['torch-scatter']
    >>> projects_in("python-dateutil-2.9.tar.gz")
    ['python-dateutil', 'python']
    """
    if filename.endswith(".whl"):
        return [normalize_name(filename.partition("-")[0])]
    parts = filename.split("-")
    return [normalize_name("-".join(parts[:count])) for count in range(len(parts) - 1, 0, -1)]


def _read_json(content: bytes) -> _JsonPage[_JsonFile]:
    """Decode a page; if some of its files are described otherwise than PEP 691 requires, without those."""
    try:
        try:
            return msgspec.json.decode(content, type=_JsonPage[_JsonFile])
        except msgspec.DecodeError:
            page = msgspec.json.decode(content, type=_JsonPage[msgspec.Raw])
            files = []
            for row in page.files:
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    files.append(msgspec.json.decode(row, type=_JsonFile))
            if not files:
                raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise PageError(f"it is not valid JSON of a package index ({reason})") from None
    _log_skipped(len(page.files) - len(files), "is not described as PEP 691 requires", "a JSON page")
    return _JsonPage(files, page.meta, page.project_status)


def _last_segment(location: str) -> str:
    name = location.partition("?")[0].rpartition("/")[2]
    return unquote(name) if "%" in name else name


def _read_html(text: str, url: str) -> _JsonPage[_JsonFile]:
    from builders.index_client.html_page import read_html

    base, meta, links = read_html(text)
    resolve = _resolver(_resolver(url)(base))
    rows = []
    for attributes in links:
        location, _, fragment = attributes["href"].strip().partition("#")
        name = _last_segment(location)
        if name.endswith(_ENDINGS):
            get = attributes.get
            yanked = get("data-yanked")
            metadata = get("data-core-metadata", get("data-dist-info-metadata"))
            rows.append(
                _JsonFile(
                    name,
                    resolve(location),
                    Hashes(_sha256(fragment)),
                    upload_time=get("data-upload-time"),
                    requires_python=get("data-requires-python"),
                    yanked=yanked or yanked is not None,
                    core_metadata=Hashes(_sha256(metadata))
                    if metadata and metadata != "false"
                    else metadata == "",
                )
            )
    api, status = (meta.get(f"pypi:{name}", "") for name in ("repository-version", "project-status"))
    return _JsonPage(rows, PageMeta(api or "1.0"), _Status(status))


def _sha256(text: str) -> str:
    """Return the hash in ``sha256=...``."""
    if text.startswith("sha256=") and "&" not in text:
        return _digest(text[7:])
    return _digest(text.partition("sha256=")[2].partition("&")[0])


def _digest(text: str) -> str:
    """Return a hash in lower case; empty, as if it were unknown, if it is not hexadecimal."""
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        return ""


@lru_cache
def _resolver(url: str) -> Callable[[str], str]:
    """Return a function that resolves links against the URL of a page; those into one directory only once."""

    @cache
    def resolve_directory(directory: str) -> str:
        return urljoin(url, directory)

    def resolve(link: str) -> str:
        if link.startswith(_WEB):
            return link
        directory, slash, name = link.rpartition("/")
        try:
            return resolve_directory(f"{directory}{slash}" or "./") + name
        except ValueError:  # a malformed host: the request will fail
            return link

    return resolve
