"""The small frozen types that everything else speaks of. Terms: ``docs/architecture.md``."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from resolver.facts.schema import Backend, Image, Recipe, Release, Row, Status, Window
    from resolver.specifiers import Specifier

Kind = Literal["platform", "distribution"]
Origin = Literal["published", "build", "base-image", "site", "request"]
Support = Literal["documented", "observed", "any"]
Prefer = Literal["newest", "proven", "oldest"]
Verdict = Literal["supported", "at-own-risk"]

PLATFORM = ("backend", "gfx", "kernel-driver", "rocm", "base-image", "glibc", "python")
"""Names of the platform components."""

_ORDER = (*(name for name in PLATFORM if name != "python"), "torch", "python")
"""A newer torch is worth more than a newer Python, several of which every torch is published for."""
_LAYERS = {name: position for position, name in enumerate(_ORDER)}

STATUS_RANK = {"documented": 2, "observed": 1, "inferred": 0}
SUPPORT_FLOOR = {"documented": 2, "observed": 1, "any": 0}


def layer(name: str) -> tuple[int, str]:
    """Order components as they are decided: the platform, torch, Python, then the rest by name."""
    return _LAYERS.get(name, len(_LAYERS)), name


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One thing the catalog says, in words, with where it stands."""

    text: str
    status: Status
    source: str
    note: str = ""
    file: str = ""
    """The catalog file of the row."""

    @classmethod
    def of(cls, row: Row, text: str, *, note: str | None = None) -> Fact:
        """Say in words what a row of the catalog means."""
        return cls(text, row.status, row.source, row.note if note is None else note, row.file)


class Candidate(msgspec.Struct, frozen=True):
    """One version of one component that could be chosen."""

    name: str
    version: str
    kind: Kind
    origin: Origin
    fact: Fact
    """That this version exists, and where from."""
    variant: str = ""
    """Tells apart candidates of the same version: a commit, a backend."""
    index: str = ""
    """URL of the wheel index that serves it, if another than PyPI."""
    release: Release | None = None
    recipe: Recipe | None = None
    remark: str = ""
    """What is to be said if it is chosen."""

    @property
    def key(self) -> str:
        """Version and variant as one text."""
        return f"{self.version} ({self.variant})" if self.variant else self.version

    def __str__(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.key}"


def is_preinstalled(one: Candidate) -> bool:
    """Tell whether a candidate is a distribution that is installed already and stays."""
    return one.origin == "base-image" and one.kind == "distribution"


class Requirement(msgspec.Struct, frozen=True):
    """A distribution or platform component that somebody asked for."""

    name: str
    specifier: Specifier | None
    text: str
    """As it was written."""
    variant: str = ""
    """The only variant of its releases that will do, as in ``flash-attn[triton]``; any when empty."""


class Target(msgspec.Struct, frozen=True):
    """What we resolve and build for."""

    backend: Backend
    gfx: tuple[str, ...]
    site: str
    date: date
    driver: str | None = None
    """Minor line of the kernel driver, if one was named rather than taken from the site."""
    base_image: str | None = None
    python: str | None = None
    """CPython minor of the machine, where the target is the machine itself."""
    glibc: str | None = None
    """glibc of the machine, where the target is the machine itself."""


IMAGE = "image"
"""What `Preinstalled.source` is where the catalog says what the chosen base image holds."""


class Preinstalled(msgspec.Struct, frozen=True):
    """What is installed already and is to stay as it is."""

    source: str
    """The file that lists it, or `IMAGE`."""
    installed: tuple[tuple[str, str], ...] = ()
    """Normalised name and version of every distribution in the file."""


class Request(msgspec.Struct, frozen=True):
    """Everything that a resolution depends on besides the catalog."""

    target: Target
    requirements: tuple[Requirement, ...]
    support: Support = "any"
    prefer: Prefer = "newest"
    site_file: str = ""
    """The file that describes the site, where one was named instead of a site."""
    catalogs: tuple[str, ...] = ()
    """What the request lays over the catalog; a suggestion repeats it."""
    keep: Preinstalled | None = None
    """What is installed already and is to stay, if anything."""


class Pick(msgspec.Struct, frozen=True):
    """The chosen version of one component, and why it may be chosen."""

    candidate: Candidate
    support: Status
    """The weakest status among its facts."""
    verdict: Verdict
    facts: tuple[Fact, ...]

    @property
    def name(self) -> str:
        """The component's name."""
        return self.candidate.name

    @property
    def version(self) -> str:
        """The chosen version."""
        return self.candidate.version


class Edge(msgspec.Struct, frozen=True, gc=False):
    """`subject` needs `object` to run or to be built."""

    subject: str
    object: str
    kind: Literal["run", "build"]
    declared: bool
    """Whether the source says so itself."""
    requirement: str = ""
    """As the recipe writes it, for what the catalog leaves to pip."""


class Resolution(msgspec.Struct, frozen=True):
    """The chosen set."""

    request: Request
    picks: tuple[Pick, ...]
    edges: tuple[Edge, ...]
    order: tuple[tuple[str, ...], ...]
    """Install order: each group needs only what stands in earlier groups."""
    warnings: tuple[str, ...] = ()
    window: Window | None = None
    """The site's driver window, unless the request named the driver."""
    image: Image | None = None
    """The row of the chosen base image."""

    def pick(self, name: str) -> Pick | None:
        """Find a pick by name."""
        return next((pick for pick in self.picks if pick.name == name), None)


class CoreItem(msgspec.Struct, frozen=True, gc=False):
    """One of the things that together cannot hold."""

    text: str
    kind: Literal["request", "fact"]
    source: str


class Suggestion(msgspec.Struct, frozen=True):
    """A change after which the request resolves."""

    change: str
    request: tuple[str, ...]


class Conflict(msgspec.Struct, frozen=True):
    """Why there is no resolution: the items of the core do not fit together; without any one they would."""

    request: Request
    core: tuple[CoreItem, ...]
    suggestions: tuple[Suggestion, ...]
