"""The tables of a lock (schema 2), as types."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Literal

import msgspec

from resolver.errors import UsageError, did_you_mean
from resolver.facts.schema import Backend, Git, Patch, Sdist, Status
from resolver.model import Kind, Origin, Prefer, Support, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the lock."""


class LockedFact(_Part, frozen=True, kw_only=True):
    """A reason for a pick."""

    text: str
    status: Status
    source: str
    note: str = ""
    file: str = ""
    """The catalog file of the row; of a shipped one its path in the project."""


class LockedDriver(_Part, frozen=True, kw_only=True, rename={"since": "from"}):
    """The kernel driver, and from when to when the site has it."""

    version: str
    """Minor line of AMD's driver."""
    since: date | None = None
    until: date | None = None
    """The first day on which it no longer holds."""
    package: str = ""
    """The driver package as the site names it."""
    source: str = ""
    """Where the site says so; empty where the request named the driver."""


class LockedImage(_Part, frozen=True, kw_only=True):
    """The base image."""

    name: str
    path: str = ""
    digest: str = ""
    dockerhash: str = ""
    """First digits of the digest of the image it was made from."""
    libstdcxx: str = ""
    """GCC release of its libstdc++, where that is known."""


class LockedTarget(_Part, frozen=True, kw_only=True):
    """What was resolved for: the whole platform."""

    site: str
    date: date
    backend: Backend
    gfx: tuple[str, ...] = ()
    rocm: str = ""
    glibc: str = ""
    python: str = ""
    """CPython minor."""
    python_abi: str = ""
    """ABI tag of that Python, such as ``cp312``."""
    driver: LockedDriver | None = None
    base_image: LockedImage | None = None


class LockedPreinstalled(_Part, frozen=True, kw_only=True):
    """What was said to be installed, and to stay as it is."""

    source: str
    installed: dict[str, str] = {}


class LockedRequest(_Part, frozen=True, kw_only=True):
    """What was asked for; with the site, day, backend and offload targets of the target all of it."""

    requirements: tuple[str, ...] = ()
    support: Support = "any"
    prefer: Prefer = "newest"
    driver: str = ""
    """The driver, where the request named it rather than the site."""
    base_image: str = ""
    python: str = ""
    """CPython minor of the machine, where the target is the machine itself."""
    glibc: str = ""
    """glibc of the machine, where the target is the machine itself."""
    site_file: str = ""
    catalogs: tuple[str, ...] = ()
    keep: LockedPreinstalled | None = None


class LockedPick(_Part, frozen=True, kw_only=True):
    """One chosen component."""

    name: str
    version: str
    variant: str = ""
    kind: Kind
    origin: Origin
    support: Status
    verdict: Verdict
    wheel_version: str = ""
    """For what is built: its version with the label, as the consumer pins it."""
    index: str = ""
    """URL of the wheel index that serves it; empty for what is on PyPI."""
    sdist: Sdist | None = None
    git: Git | None = None
    wheel: Sdist | None = None
    patches: tuple[Patch, ...] = ()
    """Changes to the source; the files lie beside the catalog file that lists them."""
    fact: tuple[LockedFact, ...] = ()

    @property
    def key(self) -> str:
        """Version and variant as one text, as `Candidate.key`."""
        return f"{self.version} ({self.variant})" if self.variant else self.version

    @property
    def pinned(self) -> str:
        """The version that a consumer pins."""
        return self.wheel_version or self.version


class LockedEdge(_Part, frozen=True, kw_only=True):
    """`subject` needs `object`."""

    subject: str
    object: str
    kind: Literal["run", "build"]
    declared: bool
    requirement: str = ""


class Lock(_Part, frozen=True, kw_only=True):
    """A lock file."""

    schema: int
    order: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    request: LockedRequest = LockedRequest()
    target: LockedTarget
    pick: tuple[LockedPick, ...] = ()
    edge: tuple[LockedEdge, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """What was asked for, as it was written."""
        return self.request.requirements

    def find(self, name: str) -> LockedPick | None:
        """Find a pick by name."""
        return next((pick for pick in self.pick if pick.name == name), None)

    def version_of(self, name: str) -> str:
        """Give the locked version of a component, or an empty text."""
        pick = self.find(name)
        return pick.version if pick else ""

    def built(self, names: Collection[str] = ()) -> list[LockedPick]:
        """Give the picks that are built, in install order.

        Parameters
        ----------
        names
            Only these; all when empty.

        Raises
        ------
        UsageError
            A name that the lock does not build.
        """
        rank = {name: number for number, group in enumerate(self.order) for name in group}
        built = {pick.name: pick for pick in self.pick if pick.origin == "build"}
        for name in names:
            if name not in built:
                msg = f"The lock does not build {name!r}."
                raise UsageError(msg, hint=did_you_mean(name, built) or "Nothing in it is built.")
        chosen = (pick for name, pick in built.items() if not names or name in names)
        return sorted(chosen, key=lambda pick: (rank.get(pick.name, len(rank)), pick.name))
