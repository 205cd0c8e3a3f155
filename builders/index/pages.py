"""The pages of a simple repository, from records to text and back: nothing here touches a file.

Each project has the same page twice: HTML (PEP 503, with the attributes of PEP 592 and PEP 792), which
pip reads over ``file://``, and JSON (PEP 691, with PEP 700 and PEP 792). Links are relative. The JSON
page is also where the index remembers what it knows of a wheel, so that adding one wheel reads one
file. What is remembered for this program alone has keys that begin with an underscore, which PEP 691
leaves to the index.
"""

from __future__ import annotations

import html
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE = "index.html"
JSON_PAGE = "index.json"
API_VERSION = "1.1"
"""With sizes and versions (PEP 700)."""
API_VERSION_WITH_STATUS = "1.4"
"""With the project's status (PEP 792)."""

State = Literal["active", "archived", "deprecated"]
"""Project states of PEP 792, but for ``quarantined``, which offers nothing."""

_HEAD = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="{version}">
{meta}<title>{title}</title>
</head>
<body>"""
_FOOT = """</body>
</html>
"""


class Hashes(msgspec.Struct, frozen=True, gc=False):
    """Of a file: a struct, since thousands of small dicts take longer to read and to write."""

    sha256: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True, gc=False):
    """What a page says of one wheel, as PEP 691 spells it."""

    filename: str
    url: str
    hashes: Hashes
    size: int
    """In bytes."""
    upload_time: str = ""
    """When it came into the index: UTC, as PEP 700 writes it."""
    requires_python: str = ""
    yanked: str | bool = False
    """Why it should not be chosen any more (PEP 592), or true without a reason."""
    version: str = msgspec.field(name="_version")
    metadata_sha256: str = msgspec.field(name="_metadata-sha256", default="")
    """Of the METADATA inside. The file beside the wheel that PEP 658 has is served, never kept."""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """What PEP 792 says of a project."""

    status: State = "active"
    reason: str = ""


ACTIVE = Status()


class _Meta(msgspec.Struct, frozen=True, rename="kebab"):
    api_version: str = API_VERSION


class ProjectPage(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The page of a project."""

    meta: _Meta
    name: str
    project_status: Status = ACTIVE
    versions: list[str]
    files: list[Entry]


class _RootProject(msgspec.Struct, frozen=True):
    name: str


class _RootPage(msgspec.Struct, frozen=True):
    meta: _Meta
    projects: list[_RootProject]


_encoder = msgspec.json.Encoder()
_project_decoder = msgspec.json.Decoder(ProjectPage)


def link_of(filename: str) -> str:
    """Give the relative address of a file beside the page."""
    return quote(filename)


def project_json(name: str, entries: Iterable[Entry], status: Status = ACTIVE) -> bytes:
    """Write a project's JSON page (PEP 691, PEP 700, PEP 792).

    Parameters
    ----------
    name
        The normalised name.
    entries
        Its wheels, in the order they are listed.
    status
        What the project's keepers say of it.
    """
    files = list(entries)
    page = ProjectPage(
        meta=_Meta(_api_version(status)),
        name=name,
        project_status=status,
        versions=list(dict.fromkeys(one.version for one in files)),
        files=files,
    )
    return _encoder.encode(page)  # not indented, which takes long with thousands of wheels


def project_html(
    name: str, entries: Iterable[Entry], status: Status = ACTIVE, *, metadata: bool = False
) -> bytes:
    """Write a project's HTML page (PEP 503).

    Parameters
    ----------
    metadata
        Whether to say that the metadata can be had beside each wheel (PEP 658 and PEP 714): only a
        server that answers for it may.
    """
    links = [_link(one, metadata=metadata) for one in entries]
    meta = ""
    if status.status != "active":
        meta = f'<meta name="pypi:project-status" content="{status.status}">\n'
        if status.reason:
            said = html.escape(status.reason)
            meta += f'<meta name="pypi:project-status-reason" content="{said}">\n'
    return _html(_api_version(status), f"Links for {name}", links, meta=meta)


def _html(version: str, title: str, links: Iterable[str], *, meta: str = "") -> bytes:
    head = _HEAD.format(version=version, meta=meta, title=title)
    return "\n".join([head, *links, _FOOT]).encode()


def _link(one: Entry, *, metadata: bool) -> str:
    attributes = ""
    if one.requires_python:
        attributes += f' data-requires-python="{_escaped(one.requires_python)}"'
    if one.yanked is not False:
        attributes += f' data-yanked="{html.escape(one.yanked if isinstance(one.yanked, str) else "")}"'
    if metadata and one.metadata_sha256:
        said = f"sha256={one.metadata_sha256}"
        attributes += f' data-core-metadata="{said}" data-dist-info-metadata="{said}"'
    # A name that needs no escapes in an address but for "+" needs none in HTML.
    plain = one.url.replace("%2B", "+") == one.filename
    name = one.filename if plain else html.escape(one.filename)
    return f'<a href="{one.url}#sha256={one.hashes.sha256}"{attributes}>{name}</a><br>'


@lru_cache(maxsize=64)
def _escaped(text: str) -> str:
    """Escape a text that thousands of links share."""
    return html.escape(text)


def with_metadata(page: ProjectPage) -> bytes:
    """Write a JSON page that says that the metadata can be had beside each wheel (PEP 714)."""
    document: dict[str, Any] = msgspec.to_builtins(page)
    for one in document["files"]:
        if one.get("_metadata-sha256"):
            one["core-metadata"] = {"sha256": one["_metadata-sha256"]}
    return msgspec.json.encode(document)


def root_json(names: Iterable[str]) -> bytes:
    """Write the JSON page that lists the projects."""
    page = _RootPage(_Meta(), [_RootProject(name) for name in names])
    return msgspec.json.format(_encoder.encode(page), indent=1) + b"\n"


def root_html(names: Iterable[str]) -> bytes:
    """Write the HTML page that lists the projects."""
    links = (f'<a href="{name}/">{name}</a><br>' for name in names)
    return _html(API_VERSION, "Simple index", links)


def read_project(text: bytes) -> ProjectPage | None:
    """Read a project's JSON page; None if it is damaged or of something else."""
    try:
        return _project_decoder.decode(text)
    except msgspec.DecodeError:
        return None


def known_files(text: bytes) -> Mapping[str, Entry]:
    """Give what a JSON page knows, by file name; nothing if it cannot be read."""
    page = read_project(text)
    return {} if page is None else {one.filename: one for one in page.files}


def _api_version(status: Status) -> str:
    return API_VERSION if status == ACTIVE else API_VERSION_WITH_STATUS
