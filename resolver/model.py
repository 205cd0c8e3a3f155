"""The types that the whole program shares: facts, requests, and the resolution that `matrix.lock` stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from resolver.errors import UsageError, did_you_mean
from resolver.facts.schema import (
    NETWORK_PLUGIN,
    PLATFORM,
    Backend,
    EdgeKind,
    Git,
    Patch,
    Recipe,
    Sdist,
    Status,
)
from resolver.indexes import ExcludedFile, File, Judgement, SourceClass, StatedMetadata
from resolver.texts import Digest, Gfx, Name, OpsText, SiteName, Url, VersionText, html_table

if TYPE_CHECKING:
    from resolver.facts.schema import Release, Row
    from resolver.versions import Specifier

Kind = Literal["platform", "distribution"]
Origin = Literal["published", "build", "base-image", "site", "request", "default", "preinstalled"]
Prefer = Literal["advised", "newest", "proven", "oldest"]
Verdict = Literal["supported", "at-own-risk"]
ImageUse = Literal["of-site", "if-needed", "none"]

SCHEMA = 1
"""Version of the lock and of the JSON documents that contain the same structs."""

_FIRST = (*(name for name in PLATFORM if name != "python"), "torch")
_LAYERS = {name: position for position, name in enumerate(_FIRST)}
UNLISTED = "unlisted-"
"""Prefix of the components that decide whether releases are used that the catalog does not list."""
SUGGESTIONS_STOPPED = "suggestions-stopped"
"""The id of the warning that not every change of a request was tried."""
INCOMPLETE = "lock-incomplete"
"""The id of the note that only build backends know what some sources require."""
EARLY_PYTHON = len(_FIRST)
"""The layer in which Python is limited to that of the base image or the site, if there is one."""
_REQUESTED, _PYTHON, _OTHERS = (len(_FIRST) + number for number in (1, 2, 3))

STATUS_RANK = {"documented": 2, "observed": 1, "inferred": 0}


def layer(name: str, requested: Collection[str] = ()) -> tuple[int, str]:
    """Return the sort key in the order of decisions: torch and what is requested count more than Python."""
    if name == "python":
        return _PYTHON, name
    if name.startswith(UNLISTED):
        return -1, name
    return _LAYERS.get(name, _REQUESTED if name in requested else _OTHERS), name


class Fact(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A statement of the catalog as text, with its source."""

    text: str
    status: Status
    source: str
    note: str = ""
    file: str = ""
    """The catalog file of the row."""

    @classmethod
    def of(cls, row: Row, text: str, *, note: str | None = None) -> Fact:
        """Return the fact of a row of the catalog, with `text` as its text."""
        return cls(text, row.status, row.source, row.note if note is None else note, row.file)


class Notice(str):
    """A note or a warning about an answer: its text, with what programs compare.

    Locks and JSON have the text with the id (`marked`), so one that was read from them has no `subject`.
    """

    __slots__ = ("id", "short", "subject")
    id: str
    subject: str
    short: str
    """What a narrow screen shows of it, if that is not the beginning of the text."""

    def __new__(cls, id_: str, subject: str, text: str, short: str = "") -> Self:
        """Return a notice of a kind about one component, project, image or row; about none, it is empty."""
        notice = super().__new__(cls, text)
        notice.id = id_
        notice.subject = subject
        notice.short = short
        return notice

    @property
    def marked(self) -> str:
        """The text with the id at its end."""
        return f"{self} [{self.id}]" if self.id else str(self)

    @classmethod
    def from_marked(cls, text: str) -> Self:
        """Return the notice whose `marked` is a text."""
        start, _, end = text.rpartition(" [")
        is_marked = end.endswith("]") and end[:-1].replace("-", "").isalnum()
        return cls(end[:-1], "", start) if is_marked else cls("", "", text)


class Candidate(msgspec.Struct, frozen=True):
    """A version of a component that the solver may choose."""

    name: str
    version: str
    kind: Kind
    origin: Origin
    fact: Fact
    """The fact that this version exists."""
    variant: str = ""
    """Distinguishes candidates of the same version: a commit, a backend."""
    index: str = ""
    """URL of the wheel index that serves it; empty for PyPI."""
    release: Release | None = None
    recipe: Recipe | None = None
    remark: str = ""
    """A warning to print if it is chosen."""
    inferred_from: str = ""
    """The version whose facts it has, if the catalog does not list it."""

    @property
    def key(self) -> str:
        """Version and variant."""
        return _key(self.version, self.variant)

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


def _key(version: str, variant: str) -> str:
    return f"{version} ({variant})" if variant else version


class Requirement:
    """A requested component. Equality, hash and the encoded form depend only on its text."""

    __slots__ = ("extras", "marker", "name", "reason", "specifier", "text", "url")

    def __init__(
        self,
        name: str,
        specifier: Specifier | None,
        text: str,
        extras: tuple[str, ...] = (),
        *,
        url: str = "",
        marker: str = "",
        reason: str = "",
    ) -> None:
        self.name = name
        self.specifier = specifier
        self.text = text
        """As the user wrote it."""
        self.extras = extras
        """The names in brackets, normalized and sorted: extras, or a variant as in ``flash-attn[triton]``."""
        self.url = url
        """The direct reference (``name @ URL``), if any."""
        self.marker = marker
        self.reason = reason
        """Why it is in the request, if the user did not write it. A lock does not keep it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Requirement) and (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))

    def __repr__(self) -> str:
        return f"Requirement({self.text!r})"

    def __str__(self) -> str:
        return self.text


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The platform: the requested parts in a request, all chosen parts in a resolution.

    None means "not requested" in a request, and "there is none" in a resolution.
    """

    site: SiteName
    date: date
    backend: Backend
    gfx: tuple[Gfx, ...] = ()
    driver: VersionText | None = None
    """Major.minor line of the kernel driver."""
    base_image: str | None = None
    rocm: VersionText | None = None
    python: VersionText | None = None
    """CPython minor version. In a request, the machine's own version if the target is the machine."""
    glibc: VersionText | None = None
    """glibc version. In a request, the machine's own version if the target is the machine."""


IMAGE = "image"
"""The value of `Preinstalled.source` for the content of the chosen base image."""


class Preinstalled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distributions that are already installed and must not change."""

    source: str
    """The file that lists them, or `IMAGE`."""
    installed: dict[Name, str] = {}
    """Normalized name to version."""
    replaced: tuple[Name, ...] = ()
    """Names that the user excluded: another version may be installed over theirs."""

    def __hash__(self) -> int:
        return hash((self.source, frozenset(self.installed.items()), self.replaced))

    def kept(self, held: Mapping[str, str]) -> dict[str, str]:
        """Return the versions by name, among those that an environment has, that must not change."""
        return {name: version for name, version in held.items() if name not in self.replaced}


class FactsFile(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A file of facts over the shipped ones, as it was when the request was resolved."""

    path: str
    """As the user named it; below the directory, if the user named a directory."""
    sha256: Digest


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a resolution depends on besides the catalog."""

    target: Target
    requirements: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    """Limits on distributions that other requirements add (``pip install -c``)."""
    overrides: tuple[Requirement, ...] = ()
    """Requirements that replace all others on the same distribution (``uv pip compile --override``)."""
    prefer: Prefer = "advised"
    """``advised``: the site's advice, then the newest."""
    site_file: str = ""
    """The file that describes the site, if the user passed a file instead of a name."""
    catalogs: tuple[str, ...] = ()
    """Overlays that the user added to the catalog."""
    preinstalled: Preinstalled | None = None
    no_prebuilt: bool = False
    """Whether to build every distribution that has a recipe, even if wheels are published."""
    facts_files: tuple[FactsFile, ...] = ()
    """All files of facts that were read over the shipped ones, weakest first."""
    no_network_plugin: bool = False
    """Whether RCCL's network plugin is left out: the user said so, or installs outside of the base image."""
    excluded: tuple[ExcludedFile, ...] = ()
    """Files that do not fit, as a complete reading after an earlier resolution has shown."""
    stated: tuple[StatedMetadata, ...] = ()
    """What build backends have stated, after an earlier resolution, of sources whose files do not say it."""
    dated: bool = False
    """Whether the user named a day in the past. Then releases without a known date are not candidates."""
    use_image: ImageUse = "if-needed"
    """Which base image is chosen if the request names none. ``of-site``: one of those that the site lists for
    its day, if ROCm is needed and one fits. ``if-needed``: only for what needs one. ``none``: never one."""
    ops: tuple[OpsText, ...] = ()
    """The ops to compile instead of a recipe's choice, such as ``deepspeed:fused_adam,cpu_adam``; sorted."""

    def ops_of(self, name: str) -> list[str]:
        """Return the ops to compile of a package; none if its recipe chooses."""
        listed = (text.partition(":") for text in self.ops)
        return next((ops.split(",") for package, _, ops in listed if package == name), [])


class Distribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chosen version of a distribution or platform component, and why it may be chosen."""

    name: Name
    version: str
    variant: str = ""
    kind: Kind
    origin: Origin
    support: Status
    """The weakest status among its facts."""
    verdict: Verdict
    wheel_version: VersionText = ""
    """The version with its label, if we build it."""
    index: Url = ""
    """URL of the wheel index that serves it; empty for PyPI."""
    sdist: Sdist | None = None
    git: Git | None = None
    wheel: Sdist | None = None
    patches: tuple[Patch, ...] = ()
    """Changes to the source. The files are next to the catalog file that lists them."""
    files: tuple[File, ...] = ()
    """Those from which pip may install it on the target: wheels, or else an sdist; if we build it, all."""
    extras: tuple[Name, ...] = ()
    """The required extras, normalized and sorted."""
    alias_of: str = ""
    """The distribution that our wheel of this name only requires."""
    facts: tuple[Fact, ...] = ()
    content: Judgement | None = None
    """Whether its first file fits; None if nothing in it is compiled, or if facts of the catalog decide."""
    source: SourceClass | None = None
    """What kind of source it is, if it has no wheel for the target."""
    recipe: Recipe | None = None
    """How it is built, as drafted from its source, if the catalog has no recipe."""

    @property
    def key(self) -> str:
        """Version and variant."""
        return _key(self.version, self.variant)

    @property
    def pinned(self) -> str:
        """The version that a consumer pins."""
        return self.wheel_version or self.version

    @property
    def weakest(self) -> Fact:
        """The fact with the weakest status."""
        return next((fact for fact in self.facts if fact.status == self.support), self.facts[0])

    @property
    def comes_with_image(self) -> bool:
        """Whether it is in the base image and was not chosen: libfabric, and the image's network plugin."""
        return self.kind == "platform" and self.name in {"libfabric", NETWORK_PLUGIN}

    @property
    def is_sdist(self) -> bool:
        """Whether a consumer's pip builds it: ROCm's ``rocm``."""
        return self.origin == "published" and bool(self.files) and not self.files[0].name.endswith(".whl")

    @property
    def source_digest(self) -> str:
        """The SHA-256 of its sdist, or its commit; empty if it has no source with a hash."""
        pin = self.sdist.sha256 if self.sdist else self.git.commit if self.git else ""
        return pin or next((file.sha256 for file in self.files if not file.name.endswith(".whl")), "")

    @property
    def draft_source(self) -> str:
        """What `matrix catalog draft` reads to draft its recipe: the URL in the request, or a release."""
        url = self.files[0].url if self.files and not self.files[0].index else ""
        return url.removeprefix("file://") or f"{self.name}=={self.version}"

    @property
    def is_pure_source(self) -> bool:
        """Whether it is built from a source that compiles nothing."""
        return self.source is not None and self.source.kind == "pure"

    @property
    def lacks_recipe(self) -> bool:
        """Whether it is to be built, and neither the catalog nor its source says how."""
        return self.origin == "build" and bool(self.files) and self.source is not None and self.recipe is None

    @property
    def is_untried(self) -> bool:
        """Whether it is compiled with a recipe that nobody has tried."""
        return self.recipe is not None and not self.is_pure_source

    @property
    def direct_url(self) -> str:
        """The URL of its file with its hash, if a direct reference (``NAME @ URL``) names it."""
        is_direct = self.origin != "build" and self.files and not self.files[0].index
        return self.files[0].hashed_url if is_direct else ""

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class Edge(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"subject": "from", "object": "to"},
):
    """`subject` needs `object` to run or to be built."""

    subject: Name
    object: Name
    kind: EdgeKind
    declared: bool
    """Whether the source declares it."""
    requirement: str = ""
    """The requirement of the recipe, if pip chooses the version."""


class BaseImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The chosen base image."""

    name: str
    path: str = ""
    digest: Digest = ""
    dockerhash: Digest = ""
    """First digits of the digest of the image that it was built from."""
    libstdcxx: VersionText = ""
    """GCC release."""


class DriverWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """The dates between which the site has this kernel driver."""

    since: date
    until: date | None = None
    """The first day after the range."""
    package: str = ""
    source: str = ""


class Resolution(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="status",
    tag="resolved",
):
    """The chosen versions: what the solver returns, `matrix.lock` stores and later steps read."""

    schema: int = SCHEMA
    request: Request
    target: Target
    image: BaseImage | None = None
    driver_window: DriverWindow | None = None
    """The site's window for its driver; None if the request names the driver."""
    picks: tuple[Distribution, ...] = ()
    order: tuple[tuple[Name, ...], ...] = ()
    """Install order: each group needs only members of earlier groups."""
    edges: tuple[Edge, ...] = ()
    left_open: tuple[str, ...] = ()
    """Descriptions of the distributions that are not locked, because their metadata could not be read."""
    incomplete: tuple[Name, ...] = ()
    """The sources whose requirements only their build backends know, none of which was asked yet."""
    indexes: tuple[Url, ...] = ()
    """The indexes of the user other than PyPI, in order of preference, if it leaves distributions to pip."""
    notes: tuple[Notice, ...] = ()
    warnings: tuple[Notice, ...] = ()

    def _repr_html_(self) -> str:
        rows = ((pick.name, pick.version, pick.origin, pick.verdict, pick.support) for pick in self.picks)
        return html_table(f"Resolved for {_described(self.target)}", rows)

    def pick(self, name: str) -> Distribution | None:
        """Return the pick of this name, in any spelling."""
        wanted = name.lower().replace("_", "-").replace(".", "-")
        return next((pick for pick in self.picks if pick.name == wanted), None)

    def version_of(self, name: str) -> str:
        """Return the chosen version of a component, or an empty string."""
        pick = self.pick(name)
        return pick.version if pick else ""

    @property
    def distributions(self) -> list[Distribution]:
        """Everything that pip installs, in install order."""
        rank = {name: number for number, group in enumerate(self.order) for name in group}
        picks = (pick for pick in self.picks if pick.kind == "distribution")
        return sorted(picks, key=lambda pick: (rank.get(pick.name, len(rank)), pick.name))

    @property
    def is_complete(self) -> bool:
        """Whether it has every distribution of the environment, with the files that pip may install."""
        origins = {pick.origin for pick in self.distributions}
        published = [pick.files for pick in self.distributions if pick.origin == "published"]
        return not self.left_open and all(published) and bool(published or origins == {"preinstalled"})

    def published(self) -> list[Distribution]:
        """Return the distributions whose files are locked, and that nobody has to build."""
        return [pick for pick in self.distributions if pick.origin == "published" and pick.files]

    def built(self, names: Collection[str] = ()) -> list[Distribution]:
        """Return the distributions to build, in install order; only `names` if given.

        Raise `UsageError` if the lock does not build one of the names.
        """
        built = {pick.name: pick for pick in self.distributions if pick.origin == "build"}
        for name in names:
            if name not in built:
                msg = f"The lock does not build {name!r}."
                raise UsageError(
                    msg, hint=did_you_mean(name, built) or "The lock does not build any distribution."
                )
        return [pick for name, pick in built.items() if not names or name in names]

    def __repr__(self) -> str:
        picks = [f"{pick.name}=={pick.pinned}" for pick in self.distributions]
        return f"<Resolution for {_described(self.target)}: {_first(picks, ', ')}>"


class CoreItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One of the constraints that conflict."""

    text: str
    kind: Literal["request", "fact"]
    source: str
    statements: tuple[str, ...] = ()
    """Everything that it states, with every release, if the text is shorter."""
    about: tuple[str, ...] = ()
    """The requirement of the request that it is, or the components that a fact is about."""

    @classmethod
    def of(cls, fact: Fact) -> CoreItem:
        """Return a fact as a constraint."""
        return cls(fact.text, "fact", fact.source)


class Suggestion(msgspec.Struct, frozen=True):
    """A change after which the request resolves."""

    change: str
    request: Request


class Conflict(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="conflict"):
    """The reason why there is no resolution: a minimal set of constraints that conflict."""

    schema: int = SCHEMA
    request: Request
    target: Target
    core: tuple[CoreItem, ...]
    suggestions: tuple[Suggestion, ...]
    warnings: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        return f"<Conflict for {_described(self.target)}: {_first([item.text for item in self.core], '; ')}>"

    def _repr_html_(self) -> str:
        rows = [(item.text, item.source) for item in self.core]
        rows += [(f"resolves: {one.change}", "") for one in self.suggestions]
        return html_table(f"There is no resolution for {_described(self.target)}", rows)


_SHOWN = 8


def _first(texts: Sequence[str], separator: str) -> str:
    more = f"{separator}and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return separator.join(texts[:_SHOWN]) + more


def _described(target: Target) -> str:
    return f"{target.site} on {target.date} ({', '.join((target.backend, *target.gfx))})"
