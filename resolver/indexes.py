"""What the resolver reads from package indexes: projects, metadata, and the content of compiled wheels.

The resolver has no network access of its own. It asks a `PackageIndexes`, which `builders.index_client`
implements, only when it considers a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from resolver.facts.schema import Recipe
from resolver.texts import Digest, FileName, Name, Url, VersionText
from resolver.versions import join_words, satisfies

if TYPE_CHECKING:
    from collections.abc import Collection

    from resolver.facts import schema

IndexStrategy = Literal["first-index", "unsafe-best-match"]
"""Which indexes count for a project: the first one that has it, or all of them, as for pip."""

_GENERIC = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": tuple(f"gfx103{number}" for number in range(7)),
    "gfx11-generic": (
        *(f"gfx110{number}" for number in range(4)),
        *(f"gfx115{number}" for number in range(4)),
    ),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
"""The architectures that run generic code: https://llvm.org/docs/AMDGPUUsage.html#amdgpu-generic-processor-table"""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A file that an index offers: a wheel or an sdist."""

    name: FileName
    url: Url
    sha256: Digest = ""
    """Hexadecimal; empty if the index does not publish it."""
    size: int = 0
    """In bytes; 0 if unknown."""
    index: Url = ""
    """URL of the index, as in `PackageIndexes.urls`."""
    requires_python: str = ""
    uploaded: str = ""
    """Time of the upload (PEP 700) in ISO 8601, UTC; empty if unknown."""
    yanked: str | None = None
    """The reason (PEP 592), which may be empty; None if the file is not yanked."""
    has_metadata: bool = False
    """Whether the index serves its metadata (PEP 658)."""
    metadata_sha256: Digest = ""
    """SHA-256 of that metadata, hexadecimal; empty if unknown."""

    @property
    def hashed_url(self) -> str:
        """Its URL, with its hash if that is known."""
        return f"{self.url}{'&' if '#' in self.url else '#'}sha256={self.sha256}" if self.sha256 else self.url


def uploaded_by(files: Iterable[File], day: date) -> list[File]:
    """Return the files uploaded by the end of a day, and those without a known time."""
    last = day.isoformat()
    return [file for file in files if not file.uploaded or file.uploaded[:10] <= last]


def files_of(release: schema.Release) -> list[File]:
    """Return the wheels of a release that no index has, as the catalog lists them."""
    return [File(name=wheel.file, url=wheel.url, sha256=wheel.sha256) for wheel in release.wheels]


class ProjectRelease(Protocol):
    """One version of a project with its files."""

    @property
    def version(self) -> str:
        """The version as it is spelled in the file names."""

    @property
    def files(self) -> Sequence[File]:
        """Its Linux wheels and its sdists from all indexes, wheels first; may be empty."""


class InstalledFiles(msgspec.Struct, frozen=True):
    """An installed version that no index has."""

    version: str
    files: tuple[File, ...] = ()


class Project(msgspec.Struct, frozen=True):
    """A project on one or more indexes."""

    name: str
    """Normalized."""
    releases: Sequence[ProjectRelease]
    """All releases with a valid version, newest first."""


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """The core metadata of a distribution, as far as resolving needs it."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    """Normalized names."""
    requires_python: str = ""
    source: str = ""
    """Where it was read: ``its metadata file``, ``its wheel``, ``its sdist``, or a file in the sdist."""
    dynamic: bool = False
    """Whether building may change it: it was read from an sdist whose metadata is not static (PEP 643)."""


class StatedMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The requirements of a source that only its build backend, or a wheel built from it, could state."""

    name: Name
    version: VersionText
    source: Digest
    """The SHA-256 of its sdist, or its commit."""
    requires: tuple[str, ...] = ()
    extras: tuple[Name, ...] = ()

    @property
    def metadata(self) -> Metadata:
        """As metadata, which a build does not change any more."""
        return Metadata(self.name, self.version, self.requires, self.extras, source="its build backend")


class PackageIndexes(Protocol):
    """The configured package indexes. All methods may be called from several threads.

    They raise `EnvironmentLacksError` if an index cannot be reached or replies with an error, and its reply
    is not cached, and `SourceError` with index, project and file if a page or a file is broken.
    """

    @property
    def urls(self) -> tuple[str, ...]:
        """The indexes in order of preference, then find-links; without credentials and trailing slash."""

    @property
    def equal(self) -> tuple[str, ...]:
        """The indexes that have no order, as those of pip's settings: of a project on several, all count."""

    def at(self, url: str) -> PackageIndexes:
        """Return the single index at a URL, which need not be one of `urls`."""

    def project(self, name: str) -> Project | None:
        """Return a project, or None if no index has it.

        It has the releases of the first index that has more of it than wheels that we built (`built_for`),
        or of all that are `equal`, and of all find-links locations. With the strategy ``unsafe-best-match``
        it has those of all indexes.
        """

    def direct(self, name: str, url: str) -> Project:
        """Return a project with only the release of a direct reference (``name @ URL``).

        Its file has no index. The URL of a commit in git has all digits of the commit. Raise `UsageError` if
        the metadata is not static or belongs to another distribution, `CommandError` if git fails.
        """

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        """Return the metadata of a release, from its first file that provides metadata without running code.

        In this order: the metadata file of a wheel (PEP 658), the wheel itself by range requests, the
        PKG-INFO of an sdist (PEP 643), also if building may change it; if it lists no requirements, they are
        those in the requires.txt of setuptools. If an sdist has a file that matches the glob `listed`, this
        pip requirements file takes the place of its requirements without an extra.
        """

    def content(self, file: File, metadata: Metadata | None) -> Content | None:
        """Return what a wheel or an sdist contains; None if nothing in it is compiled.

        How much of the file is read depends only on the file and the metadata of its release.
        """

    def is_cached(self, name: str) -> bool:
        """Return whether `project` does not use the network, mostly because the project is in the cache."""

    def recall(self, key: str) -> bytes:
        """Return what the cache keeps under a key; empty if it keeps nothing."""

    def remember(self, key: str, content: bytes) -> None:
        """Keep what may be lost at any time in the cache, in place of what it has under the key."""

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread, so that replies are cached before they are needed; ignore its errors."""


class SourceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What kind of source an sdist, a commit or a directory is, as its files state; nothing was executed."""

    kind: Literal["pure", "compiled", "torch", "cuda", "downloads", "placeholder", "unread"]
    """Nothing to compile; compiled, without torch; compiled against torch; every build requires CUDA; every
    build downloads files; no code; could not be read."""
    evidence: str
    """What shows it, with file and line."""


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was read from one wheel, for any platform."""

    evidence: str
    """What was read and what it shows, such as ``fmha.so needs libcudart.so.12``."""
    unread: str = ""
    """What was not read, although it may decide, and why; empty if everything that decides was read."""
    cuda: Literal["none", "optional", "required"] = "none"
    """Whether it has code for CUDA, and whether it can be used without."""
    rocm: str = ""
    """The specifier of the ROCm releases that have the libraries it needs; empty if it needs none."""
    gfx: tuple[str, ...] = ()
    """The GPU architectures of its HIP code; empty if it has none."""
    gpu_builds: tuple[str, ...] = ()
    """Other distributions that its description names, and that are builds of it for GPUs."""
    broken: str = ""
    """Why it cannot be used on any machine; empty if nothing shows that it cannot."""
    unseen: str = ""
    """What was not read either, but hardly decides: this is said, and no other release is preferred."""
    needs: tuple[tuple[str, str], ...] = ()
    """The libraries without which it cannot be used, and that only distributions of its extras may have, each
    with an object that needs it."""
    libraries: tuple[str, ...] = ()
    """The file names of its own libraries, which other distributions may need."""
    source: SourceClass | None = None
    """What kind of source it is; None if it is a wheel."""
    recipes: tuple[Recipe, ...] = ()
    """How to build it for each backend, as drafted from the source."""
    sha256: Digest = ""
    """That of an sdist which was read as a whole and for which its index states none."""


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether a distribution fits the GPUs and the ROCm of a target, judged by its content."""

    state: Literal["fits", "does-not-fit", "not-judged"]
    evidence: str
    """What shows it; if it was not judged, what was not read, and why."""
    on_cpu: bool = False
    """Whether it runs on the CPU here, because only CUDA or another distribution has its GPU code."""


class ExcludedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file that does not fit the target of a lock, as a complete reading showed."""

    name: Name
    version: VersionText
    sha256: Digest
    evidence: str


def judged(content: Content, gfx: Sequence[str], rocm: str = "") -> Judgement:
    """Return whether a wheel fits all of these GPU architectures, and a ROCm (empty: any may be chosen)."""
    against = _against(content, rocm)
    if against:
        return Judgement("does-not-fit", against)
    if content.unread:
        return Judgement("not-judged", content.unread)
    if content.gfx and not all(any(runs_on(code, one) for code in content.gfx) for one in gfx):
        code = join_words(content.gfx, most=8, joiner="and")
        text = f"contains code for {code}, but not for {join_words(gfx, joiner='and')}: {content.evidence}"
        return Judgement("does-not-fit", text)
    if content.unseen:
        return Judgement("not-judged", content.unseen)
    return _fitting(content)


def _fitting(content: Content) -> Judgement:
    if content.cuda == "optional" and not (content.rocm or content.gfx):
        return Judgement("fits", f"its GPU code is for CUDA: {content.evidence}", on_cpu=True)
    if content.gpu_builds:
        builds = join_words(content.gpu_builds, most=3, joiner="and")
        return Judgement("fits", f"its builds for GPUs are {builds}, and {content.evidence}", on_cpu=True)
    return Judgement("fits", content.evidence)


def _against(content: Content, rocm: str) -> str:
    """Return what speaks against a wheel on every GPU; empty if nothing does."""
    if content.broken:
        return content.broken
    if content.cuda == "required":
        return f"requires CUDA: {content.evidence}"
    if rocm and content.rocm and not satisfies(rocm, content.rocm):
        return f"requires rocm{content.rocm}: {content.evidence}"
    return ""


def runs_on(code: str, gfx: str) -> bool:
    """Return whether GPU code runs on an architecture.

    Code for one setting of XNACK runs only with this setting. It is off unless the architecture names it.

    Examples
    --------
    >>> codes = ("gfx90a", "gfx90a:sramecc+:xnack-", "gfx90a:xnack+", "gfx9-generic")
    >>> [runs_on(code, "gfx90a") for code in codes]
    [True, True, False, False]
    >>> runs_on("gfx9-4-generic", "gfx942"), runs_on("gfx90a:xnack+", "gfx90a:xnack+")
    (True, True)
    """
    architecture, *features = code.split(":")
    wanted, *settings = gfx.split(":")
    if architecture == "amdgcnspirv":  # it is compiled when it is loaded
        return True
    if architecture != wanted and wanted not in _GENERIC.get(architecture, ()):
        return False
    other = "xnack-" if "xnack+" in settings else "xnack+"
    return other not in features


def evidence_against(
    excluded: Iterable[ExcludedFile], name: str, version: str, hashes: Collection[str]
) -> str:
    """Return the evidence against a release if one of its files is excluded; empty if none is.

    The wheels of a release differ only in their Python, so each speaks for all. A file without a hash is
    excluded by its version.
    """
    against = [one for one in excluded if (one.name, one.version) == (name, version)]
    if not against:
        return ""
    return next((one.evidence for one in against if one.sha256 in hashes or "" in hashes), "")
