"""The rows that a catalog file may hold (schema 1).

A catalog file is TOML. Any file may hold any rows; the shipped ones keep one subject a file.
Keys are written in kebab-case. Every row says its `status` and its `source`:

``documented``
    the makers say so: a support table, a requirement in the metadata, a release page;
``observed``
    somebody ran or opened it and wrote that down;
``inferred``
    nobody said so; it follows from other facts, and the note says from which.
"""

from __future__ import annotations

from datetime import date  # noqa: TC003  msgspec reads the annotations at run time
from typing import Literal

import msgspec

SCHEMA = 1

Status = Literal["documented", "observed", "inferred"]
Backend = Literal["rocm", "cpu"]
EdgeKind = Literal["run", "build"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What every row carries."""

    status: Status
    source: str
    """Where the fact stands: a URL, or ``owner/repository@commit:path``, several joined by `` ; ``."""
    note: str = ""
    """What a person should know besides: a contradiction, a limit, a condition."""
    from_file: str = ""
    """The file it stands in; set when it is read."""


class Rocm(Row, frozen=True, kw_only=True):
    """A release of the ROCm user space."""

    version: str
    gfx: tuple[str, ...] = ()
    """Offload targets that AMD's matrix names for it."""
    released: date | None = None


class Driver(Row, frozen=True, kw_only=True):
    """A minor line of AMD's kernel driver, and the user space lines its table lists for it."""

    version: str
    supports: tuple[str, ...]
    """ROCm major.minor lines marked as supported; every other line of the table is not."""


class DriverModule(Row, frozen=True, kw_only=True):
    """What a driver release says of itself in ``/sys/module/amdgpu/version``: another number."""

    driver: str
    """Release of the driver, such as ``6.0.3``."""
    module: str
    """The kernel module's own version, such as ``6.3.6``."""
    package: str = ""
    """The dkms package, such as ``6.3.6.60003-1739731``."""


class Gfx(Row, frozen=True, kw_only=True):
    """An offload target."""

    target: str
    products: tuple[str, ...] = ()


class Python(Row, frozen=True, kw_only=True):
    """A minor version of CPython."""

    version: str


class Torch(Row, frozen=True, kw_only=True):
    """One published variant of the torch wheel, with what only fits together with it."""

    version: str
    """With its local label, such as ``2.5.1+rocm6.2``."""
    backend: Backend
    index: str
    """URL of the wheel index that serves it."""
    python: tuple[str, ...]
    """CPython minors with a wheel."""
    rocm: str = ""
    """ROCm line of the label (major.minor, or with a patch); empty for a CPU wheel."""
    gfx: tuple[str, ...] = ()
    triton: str = ""
    """Exact requirement, such as ``pytorch-triton-rocm==3.1.0``."""
    torchvision: str = ""
    torchaudio: str = ""
    glibc: str = ""
    """The oldest glibc it runs on."""


class Image(Row, frozen=True, kw_only=True):
    """A base image in which extensions are compiled and containers are made."""

    name: str
    rocm: str
    os: str
    glibc: str
    path: str = ""
    """Where the site keeps it."""
    dockerhash: str = ""
    """First digits of the digest of the image it was made from, where published."""
    compilers: tuple[str, ...] = ()
    """Names of the host C and C++ compilers."""
    python: tuple[str, ...] = ()
    """CPython minors in the image; none means that the Python comes from elsewhere (conda)."""
    mpi: str = ""


class Site(Row, frozen=True, kw_only=True):
    """A named target."""

    name: str
    title: str
    backend: Backend
    gfx: tuple[str, ...] = ()


class Window(Row, frozen=True, kw_only=True, rename={"since": "from", "from_file": "from-file"}):
    """What kernel driver a site had, from one day to another."""

    site: str
    since: date
    until: date | None = None
    """The first day on which it no longer holds."""
    driver: str
    """Minor line of AMD's driver."""
    package: str = ""
    """The driver package as the site names it."""


class SiteImage(Row, frozen=True, kw_only=True, rename={"since": "from", "from_file": "from-file"}):
    """That a site offers a base image, from one day to another."""

    site: str
    image: str
    since: date | None = None
    until: date | None = None


class Sdist(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source distribution on PyPI, pinned by its hash."""

    file: str
    sha256: str


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A commit of a git repository."""

    url: str
    commit: str
    submodules: tuple[str, ...] = ()


class Release(Row, frozen=True, kw_only=True):
    """One release of an extension package, from one source.

    Exactly one of `sdist`, `git`, `wheel` and `pypi` is given. `wheel` is a published wheel, used as
    it is.
    """

    package: str
    version: str
    variant: str = ""
    """Tells apart releases of one version: a commit, a backend."""
    backend: tuple[Backend, ...] = ("rocm",)
    sdist: Sdist | None = None
    git: Git | None = None
    wheel: Sdist | None = None
    pypi: bool = False
    """An ordinary release on PyPI with wheels for every Python: pip takes the file that fits."""


class Requires(Row, frozen=True, kw_only=True):
    """The one relation: (package, releases) requires (object, versions)."""

    package: str
    releases: str = ""
    """Specifier over the package's own versions; empty means all."""
    variant: str | None = None
    """Only releases of this variant (an empty text: only those without one)."""
    backend: Backend | None = None
    """Only for this backend."""
    on: str
    """Name of a component: ``torch``, ``rocm``, ``python``, ``gfx`` or another distribution."""
    versions: tuple[str, ...]
    """Specifiers, any of which may hold; for ``gfx`` the offload targets that can be compiled."""
    kind: EdgeKind = "run"
    when_present: bool = False
    """A constraint only: it holds if the object is in the set, but does not bring it in."""


class Recipe(Row, frozen=True, kw_only=True):
    """How some releases of a package are built for one backend."""

    package: str
    releases: str = ""
    variant: str | None = None
    backend: Backend
    declared: tuple[str, ...] = ()
    """Build requirements of the source's own pyproject.toml (PEP 518)."""
    undeclared: tuple[str, ...] = ()
    """Build requirements that the source needs and does not declare."""
    match_runtime: tuple[str, ...] = ("torch",)
    """Build requirements whose version must be the very one that will run."""
    environment: dict[str, str] = {}
    """Variables set for the build. ``{gfx}`` stands for the offload targets, joined by ``;``."""
    options: tuple[str, ...] = ()
    """Build options for setuptools (``--build-option``)."""
    must_contain: tuple[str, ...] = ()
    """Globs over the wheel's members, each of which must match at least one shared object."""
    imports: tuple[str, ...] = ()
    """Modules that must import from the installed wheel."""
    native_cpu: bool = False
    """The source compiles for the CPU it is built on (``-march=native``) and cannot be told not to."""
    memory_per_job: float = 2.0
    """Peak memory of one compile job in GiB."""
    system: tuple[str, ...] = ()
    """System packages or programs the build needs, in words."""


class ProvenSet(Row, frozen=True, kw_only=True):
    """A set of versions that somebody ran together."""

    id: str
    site: str = ""
    date: date
    picks: dict[str, str]
    """Component to version (``name = "version"``, or ``"version (variant)"``)."""


class Package(Row, frozen=True, kw_only=True):
    """An extension package that the catalog knows how to build or where to find."""

    name: str
    title: str
    import_name: str = ""
    pypi: str = ""
    """What PyPI holds under this name: ``same``, ``other project`` or ``none``."""


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One file of the catalog. In a file with one ``[[package]]``, rows may leave `package` out."""

    schema: int
    rocm: list[Rocm] = []
    driver: list[Driver] = []
    driver_module: list[DriverModule] = []
    gfx: list[Gfx] = []
    python: list[Python] = []
    torch: list[Torch] = []
    image: list[Image] = []
    site: list[Site] = []
    window: list[Window] = []
    site_image: list[SiteImage] = []
    package: list[Package] = []
    release: list[Release] = []
    requires: list[Requires] = []
    recipe: list[Recipe] = []
    proven: list[ProvenSet] = []
