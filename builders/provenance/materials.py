"""What goes into a wheel, with the digest or commit that says which one exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistSource:
    """A source distribution."""

    file: str
    sha256: str
    version: str
    """As its makers call it, without label."""
    url: str = ""
    """Where it was fetched from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """A submodule of a git source, at the commit that its tree names."""

    path: str
    url: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """A commit of a git repository."""

    url: str
    commit: str
    tree: str = ""
    """Object name of the commit's tree."""
    submodules: tuple[Submodule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change to the source before it was built."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A wheel in the build environment."""

    name: str
    version: str
    sha256: str = ""
    """Of the wheel file; empty where it is not known."""
    url: str = ""
    """Where it was fetched from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The base image that was built in."""

    name: str
    digest: str
    """``sha256:...`` of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiler or another program of the machine or the image."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Materials:
    """What a wheel was made from."""

    name: str
    version: str
    """With the label."""
    source: SdistSource | GitSource
    patches: tuple[Patch, ...] = ()
    torch: Distribution | None = None
    """The torch it was built against."""
    requirements: tuple[Distribution, ...] = ()
    """What else was in the build environment."""
    image: Image | None = None
    """None for a build on the host."""
    programs: tuple[Program, ...] = ()
    rocm: str = ""
    gfx: tuple[str, ...] = ()
    """Offload targets that it was compiled for."""
    python: str = ""
    """Version of the Python it was built for."""


def purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str] | None = None) -> str:
    """Write a package URL (package-url/purl-spec).

    Examples
    --------
    >>> purl("pypi", "Flash_Attn", "2.8.3+rocm6.4")
    'pkg:pypi/flash-attn@2.8.3%2Brocm6.4'
    >>> purl("generic", "apex", "1.9.0", {"vcs_url": "git+https://example.org/apex@0123"})
    'pkg:generic/apex@1.9.0?vcs_url=git%2Bhttps://example.org/apex%400123'
    """
    named = canonicalize_name(name) if kind == "pypi" else name
    said = "&".join(f"{key}={quote(value, safe='/:')}" for key, value in sorted((qualifiers or {}).items()))
    return f"pkg:{kind}/{quote(named, safe='')}@{quote(version, safe=':')}" + (f"?{said}" if said else "")


def vcs_url(url: str, commit: str) -> str:
    """Write where a commit is, as PEP 508 and SPDX do.

    Examples
    --------
    >>> vcs_url("https://user:secret@example.org/apex.git", "0123")
    'git+https://example.org/apex.git@0123'
    """
    return f"git+{without_password(url)}@{commit}"


def without_password(url: str) -> str:
    """Leave user and password out of a URL: provenance is published."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
