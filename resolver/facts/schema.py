"""The rows of a catalog file (schema 1).

A catalog file is TOML, with keys in kebab-case. Any file may contain rows of any kind; the shipped
files have one subject each. Every row has a `status` and a `source`:

``documented``
    stated by the vendor or project: in a support table, in package metadata, on a release page;
``observed``
    seen in a run or in a file, and recorded;
``inferred``
    derived from other facts, which are in the note.
"""

import datetime
import os
from collections.abc import Callable, Iterable  # msgspec reads the annotations at run time
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from resolver.texts import Digest, FileName, RelativePath, SiteName, Url
from resolver.versions import satisfies

SCHEMA = 1
FOLDER = os.path.dirname(__file__)
_SHIPPED = FOLDER + os.sep
PLATFORM = (
    "backend", "gfx", "kernel-driver", "rocm", "base-image", "glibc", "libstdcxx", "libfabric", "python",
)  # fmt: skip
"""Names of the platform components."""
NETWORK_PLUGIN = "rccl-net"
"""The package with RCCL's network plugin, and the component of an answer if the base image has the plugin."""

Status = Literal["documented", "observed", "inferred"]
Backend = Literal["rocm", "cpu"]
EdgeKind = Literal["run", "build"]
ValidVersion = Annotated[str, msgspec.Meta(extra={"text": "version"})]
ValidSpecifier = Annotated[str, msgspec.Meta(extra={"text": "specifier"})]
ValidRequirement = Annotated[str, msgspec.Meta(extra={"text": "requirement"})]
"""Texts that `resolver.facts.validate` parses; an optional one may be empty."""


def displayed(path: str) -> str:
    """Return a path as messages show it: a shipped file is shown in the same way on every machine."""
    if path.startswith(_SHIPPED):
        return f"resolver/facts/{path[len(_SHIPPED) :]}"
    return path.removeprefix(os.getcwd() + os.sep)


class Row(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="kebab",
    omit_defaults=True,
    gc=False,
):
    """The keys of every row."""

    status: Status
    source: str
    """Where the fact is stated: a URL, or ``owner/repository@commit:path``; several joined by `` ; ``."""
    note: str = ""
    """Anything else worth knowing: a contradiction, a limit, a condition."""
    from_file: str = ""
    """Resolved path of the file that contains the row; set by the reader."""
    from_line: int = 0
    """Line of the file on which the row begins, from 1; set by the reader."""

    identity: ClassVar[tuple[str, ...]] = ()
    """The keys that identify the row: a row of a later layer replaces the row with the same values."""
    widening: ClassVar[bool] = False
    """Whether one layer may contain several rows with the same identity, each allowing more."""

    def key(self) -> tuple[object, ...]:
        """Return the values of the keys that identify the row."""
        return tuple(getattr(self, name) for name in self.identity)

    @classmethod
    def by_identity(cls) -> Callable[[Any], Any]:
        """Return a function that returns the value of the only key that identifies a row, else `key`."""
        return attrgetter(*cls.identity) if cls.key is Row.key else cls.key

    @property
    def title(self) -> str:
        """The identity of the row as text."""
        return " ".join(str(part) for part in self.key() if part not in {None, "", False, ()})

    @property
    def file(self) -> str:
        """The file that contains the row, as `displayed`."""
        return displayed(self.from_file)

    @property
    def location(self) -> str:
        """File and line of the row, in the form that compilers use."""
        return f"{self.file}:{self.from_line}"


class Rocm(Row, frozen=True, kw_only=True):
    """A release of the ROCm user space."""

    version: ValidVersion
    released: datetime.date | None = None
    """The day of its release, or on which it was seen first. Without it, no request with a date has it."""
    gfx: tuple[str, ...] = ()
    """GPU architectures that AMD's matrix lists for it."""
    hip: ValidVersion = ""
    """HIP version that it reports, if it differs from the ROCm line, such as ``7.15`` for ROCm 10.0."""

    identity = ("version",)


class Driver(Row, frozen=True, kw_only=True):
    """A major.minor line of AMD's kernel driver, with the ROCm lines that AMD's table lists for it."""

    version: ValidVersion
    supports: tuple[ValidVersion, ...]
    """ROCm lines (major.minor) that the table marks as supported."""
    unsupported: tuple[ValidVersion, ...] = ()
    """ROCm lines in the table that are not marked as supported. The table does not cover any other line."""

    identity = ("version",)


class DriverModule(Row, frozen=True, kw_only=True):
    """The version that the kernel module of a driver release reports in ``/sys/module/amdgpu/version``."""

    driver: ValidVersion
    """Release of the driver, such as ``6.0.3``."""
    module: ValidVersion
    """Version of the kernel module, such as ``6.3.6``."""
    package: str = ""
    """The DKMS package, such as ``6.3.6.60003-1739731``."""

    identity = ("driver",)


class Gfx(Row, frozen=True, kw_only=True):
    """A GPU architecture."""

    target: str
    products: tuple[str, ...] = ()
    """Models with this architecture, such as ``MI250X``, for hints."""
    driver: ValidSpecifier = ""
    """Specifier of the kernel drivers that support it, such as ``>=30.10``; empty if undocumented."""

    identity = ("target",)


class Python(Row, frozen=True, kw_only=True):
    """A minor version of CPython."""

    version: ValidVersion
    released: datetime.date | None = None
    """The day of its first release."""

    identity = ("version",)


class Torch(Row, frozen=True, kw_only=True):
    """One published variant of the torch wheel, with the distributions that match it."""

    version: ValidVersion
    """With its local label, such as ``2.5.1+rocm6.2``."""
    released: datetime.date | None = None
    backend: Backend
    index: Url
    """URL of the wheel index that serves it."""
    python: tuple[ValidVersion, ...]
    """CPython minor versions with a wheel."""
    rocm: ValidVersion = ""
    """ROCm line of the label (major.minor, or with a patch); empty for a CPU wheel."""
    gfx: tuple[str, ...] = ()
    triton: ValidRequirement = ""
    """Exact requirement, such as ``pytorch-triton-rocm==3.1.0``."""
    torchvision: ValidVersion = ""
    torchaudio: ValidVersion = ""
    glibc: ValidVersion = ""
    """The oldest glibc that it runs on."""
    cxx_standard: ValidVersion = ""
    """Oldest C++ standard that its headers compile with, such as ``17``."""
    system_rocm: bool = False
    """Whether it uses the ROCm that is installed in the system, so that it needs a base image with ROCm."""
    pip_rocm: bool = False
    """Whether it requires ROCm as pip packages, such as ``rocm[libraries]``."""
    device_extra: str = ""
    """The extra that installs the code for one GPU, such as ``device-{gfx}``; empty if the wheel has it."""

    identity = ("version",)

    def device_extras(self, gfx: Iterable[str]) -> tuple[str, ...]:
        """Return the extras that install the code for GPU architectures, sorted."""
        return tuple(sorted(self.device_extra.format(gfx=target) for target in gfx if self.device_extra))


INSPECTED = "inspection of "
"""Prefix of the source of a row that an image inspection created."""


class Image(Row, frozen=True, kw_only=True):
    """A base image in which extensions are compiled and on which containers are built."""

    name: str
    rocm: ValidVersion = ""
    """Its ROCm release, or its line if the release is not known; empty for an image without ROCm."""
    os: str = ""
    """Name of the Linux distribution and its release; empty if undocumented."""
    glibc: ValidVersion = ""
    """Its glibc; empty if undocumented, and then glibc is not checked, with a warning."""
    libstdcxx: ValidVersion = ""
    """GCC release of its libstdc++, such as ``13.2``; empty if undocumented, and then it is not checked."""
    path: str = ""
    """Its path at the site, or the address to pull it from (``docker://...``)."""
    digest: Digest = ""
    """``sha256:...`` of the image, if published."""
    dockerhash: Digest = ""
    """First digits of the digest of the image it was built from, if published."""
    python: tuple[ValidVersion, ...] = ()
    """CPython minor versions: those with torch, else with headers, else all. Empty if conda brings Python."""
    compiler: bool = False
    """Whether it is known to have ``gcc`` and ``g++``, which triton and torch.compile call at run time."""
    mpi: str = ""
    """Empty if it has none, or if that is undocumented."""
    libfabric: ValidVersion = ""
    """Empty if it has none, or if that is undocumented."""
    network_headers: bool = False
    """Whether it is known to have the headers of libfabric and hwloc, for building a network plugin."""
    network_plugin: ValidVersion = ""
    """Release of RCCL's network plugin in it: of aws-ofi-nccl, or before 1.18 of AMD's fork."""
    holds: dict[str, ValidVersion] = {}
    """Distributions that are installed in it (``torch = "2.9.1+rocm6.4"``)."""
    requires: dict[str, tuple[str, ...]] = {}
    """What the metadata of its distributions requires, by name; empty if only a list of them is known."""

    identity = ("name",)


class Site(Row, frozen=True, kw_only=True):
    """A named target."""

    name: SiteName
    title: str
    backend: Backend
    """The backend if the request names none."""
    gfx: tuple[str, ...] = ()
    network: Literal["", "slingshot"] = ""
    """The network between its nodes, if RCCL needs a plugin for it and that is documented."""
    public_images: bool = False
    """Whether the site can use every public base image (an image whose path is in a registry)."""
    cpu: str = ""
    """The oldest CPU of its compute nodes, as compilers name it (``-march``); empty if not known."""
    cluster: str = ""
    """Slurm's name of its cluster, by which a machine of the site is recognized; empty if not known."""
    build_modules: tuple[str, ...] = ()
    """Modules to load before wheels are compiled on a machine of the site, outside of images."""
    build_variables: dict[str, str] = {}
    """Variables of these builds, with ``${NAME}`` for those of the modules."""
    seen: datetime.date | None = None
    """The day of the newest source that says what the site has; None for what does not change."""

    identity = ("name",)

    def lacks(self, gfx: Iterable[str]) -> list[str]:
        """Return the GPU architectures that the site does not have; none if its own are not known."""
        return [name for name in gfx if name not in self.gfx] if self.gfx else []


class Partition(Row, frozen=True, kw_only=True):
    """A Slurm partition of a site."""

    site: str
    name: str
    backend: Backend
    """``rocm`` if its nodes have the site's GPUs."""
    max_hours: float = 0.0
    """Longest run time of a job in hours; 0 if it is unlimited or undocumented."""
    max_jobs: int = 0
    """Jobs that one user may have in it, waiting and running; 0 if it is unlimited or undocumented."""

    identity = ("site", "name")


class Job(Row, frozen=True, kw_only=True):
    """How programs that use torch are started in Slurm jobs at a site."""

    site: SiteName
    ranks: int
    """Processes per node: one for each GPU, counted as torch counts them (GCDs of an MI250X)."""
    cpus: int
    """Cores per process."""
    memory: int = 0
    """Memory per process in GB on nodes that are not used alone; 0 for the default of the partition."""
    node_partition: str = ""
    """The partition of jobs that use whole nodes; empty for Slurm's default."""
    gpu_partition: str = ""
    """The partition of jobs with one GPU; empty for Slurm's default."""
    masks: tuple[str, ...] = ()
    """The cores of each process on a whole node, as masks in the order of the local ranks."""
    options: tuple[str, ...] = ()
    """Options of srun that give each process its GPU; empty if programs choose the GPU by ``LOCAL_RANK``."""
    own_gpu: bool = False
    """Whether each process sees only its own GPU, as number 0."""
    network: tuple[str, ...] = ()
    """Options of sbatch for jobs on several nodes."""
    avoid: dict[str, str] = {}
    """Options of Slurm that break programs with torch, each with the reason (without full stop)."""
    torchrun: bool = True
    modules: dict[str, tuple[str, str]] = {}
    """The directory and the name of the module that binds file systems into containers, by pattern of the
    name of the base image. The module is loaded before a container runs."""
    mpi_modules: dict[str, str] = {}
    """Modules that put the site's MPI in place of other images' MPICH, each with how users install it."""
    binds: tuple[str, ...] = ()
    """Paths to bind into containers of other images."""
    bandwidth: float = 0.0
    """The most that the network of one node can send, in GB/s; 0 if it is not known."""
    all_reduce: float = 0.0
    """The bus bandwidth in GB/s that is normal on two whole nodes, with 128 MiB; 0 if no source states it."""
    all_reduce_source: str = ""

    identity = ("site",)


class Dated(
    Row,
    frozen=True,
    kw_only=True,
    rename={"since": "from", "from_file": "from-file", "from_line": "from-line"},
):
    """The keys of every row that applies to a range of dates."""

    since: datetime.date | None = None
    until: datetime.date | None = None
    """The first day after the range."""


class Window(Dated, frozen=True, kw_only=True):
    """The kernel driver of a site in a range of dates."""

    site: str
    since: datetime.date
    driver: ValidVersion
    """Major.minor line of AMD's driver."""
    package: str = ""
    """The site's name for the driver package."""
    glibc: str = ""
    """The glibc of the site's own operating system, which tykky, pip and uv use there; empty if unknown."""

    identity = ("site", "since")


class SiteImage(Dated, frozen=True, kw_only=True):
    """A base image that a site offers in a range of dates."""

    site: str
    image: str
    base: bool = True
    """Whether others can build on it; if not, only suggestions name it."""

    identity = ("site", "image", "since")


class SiteAdvice(Dated, frozen=True, kw_only=True):
    """The versions of a component that a site advises: preferred by default, and never a limit."""

    site: str
    on: Literal["rocm", "base-image", "torch", "python"]
    versions: tuple[ValidSpecifier, ...]
    """Specifiers, one of which matches; for ``base-image`` patterns of names (``lumi-multitorch-*``)."""
    recorded: bool = False
    """Whether the site is only recorded to have them; without a known driver, newer ROCms then come last."""
    modules: tuple[str, ...] = ()
    """The ROCm lines that the site itself installs as modules, from which its kernel driver is inferred."""

    identity = ("site", "on", "since")

    @property
    def verb(self) -> str:
        """The relation of the site to the versions, as text."""
        return "is recorded to have" if self.recorded else "advises"


class SiteVariable(Dated, frozen=True, kw_only=True):
    """An environment variable that must be set at a site, or must not be set there."""

    site: str
    name: str
    value: str | None = None
    """The required value, with ``${NAME}`` for other variables; left out if the variable must not be set."""
    reason: str
    """One sentence without a full stop."""
    directory: bool = False
    """Whether the value is the path of a directory that must exist."""
    combination: dict[str, ValidSpecifier] = {}
    """Specifiers of the versions to which the row applies, by component; empty means always."""

    identity = ("site", "name", "combination", "since")

    def key(self) -> tuple[object, ...]:
        """Return the identity; a table has no hash."""
        return (self.site, self.name, *sorted(self.combination.items()), self.since)


class Sdist(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A file, pinned by its hash."""

    file: FileName
    sha256: Digest
    url: Url = ""
    """Its URL, if PyPI does not have it."""


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A commit of a git repository."""

    url: Url
    commit: Digest
    submodules: tuple[RelativePath, ...] = ()
    """Submodules or directories. Each includes all submodules at or below it, recursively."""


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A change to a source, in the format of ``git diff``."""

    file: FileName
    """A file in the directory of the catalog file that lists it."""
    sha256: Digest


class Release(Row, frozen=True, kw_only=True):
    """One release of a package, with exactly one of `sdist`, `git`, `wheel`, `wheels`, `pypi` and `index`."""

    package: str
    version: ValidVersion
    variant: str = ""
    """Distinguishes releases of the same version: a commit, a backend."""
    released: datetime.date | None = None
    """The day of the upload, the tag or the commit, or the first day on which it was seen, in UTC."""
    backend: tuple[Backend, ...] = ("rocm",)
    sdist: Sdist | None = None
    git: Git | None = None
    wheel: Sdist | None = None
    """A published wheel, used unchanged."""
    wheels: tuple[Sdist, ...] = ()
    """Published wheels that no package index has, for different versions of Python; each has its URL."""
    pypi: bool = False
    """A release on PyPI with wheels for every Python: pip chooses the file."""
    index: Url = ""
    """URL of the package index with wheels of the release, if it is not on PyPI: pip chooses the file."""
    patches: tuple[Patch, ...] = ()
    """Applied to the unpacked source, in this order."""

    identity = ("package", "version", "variant")

    @property
    def is_published(self) -> bool:
        """Whether it has wheels, so that it is not built."""
        return bool(self.wheel or self.wheels or self.pypi or self.index)


class Wheel(Row, frozen=True, kw_only=True):
    """A wheel that was read; its requirements are separate rows."""

    package: str
    version: ValidVersion
    file: str
    sha256: str
    code: dict[str, tuple[str, ...]] = {}
    """Maps each library to the GPU architectures that it has code for."""
    libraries: tuple[str, ...] = ()
    """Libraries of ROCm that it needs and does not contain, such as ``libamdhip64.so.7``."""
    ops: tuple[str, ...] = ()
    """Ops that its op table lists as compiled."""
    licence: str = ""

    identity = ("file",)


class _OfReleases(Row, frozen=True, kw_only=True):
    """The keys of every row about some releases of a package."""

    package: str
    releases: ValidSpecifier = ""
    """Specifier of the package's own versions; empty means all."""
    variant: str | None = None
    """Only releases of this variant (empty text: only releases without a variant)."""

    def applies_to(self, release: Release) -> bool:
        """Return whether the row is about a release."""
        return (
            self.package == release.package
            and (self.variant is None or self.variant == release.variant)
            and (not self.releases or satisfies(release.version, self.releases))
        )


class Requires(_OfReleases, frozen=True, kw_only=True):
    """A requirement: (package, releases) requires (object, versions)."""

    backend: Backend | None = None
    """Only for this backend."""
    on: str
    """Name of a component: one of `PLATFORM`, ``torch`` or another distribution."""
    versions: tuple[ValidSpecifier, ...]
    """Specifiers, one of which must match; for ``gfx`` the GPU architectures that can be compiled."""
    gfx: tuple[str, ...] = ()
    """Only these may be used with these versions; empty means any. A wheel may have libraries for several
    ROCm lines, each with code for other architectures."""
    kind: EdgeKind = "run"
    partial: bool = False
    """Whether other versions may work, too. Such a row excludes nothing."""
    when_present: bool = False
    """Whether this is only a constraint: it applies if the object is chosen, but does not require it."""

    identity = ("package", "releases", "variant", "backend", "on", "kind", "when_present")
    widening = True

    @property
    def is_of_wheel(self) -> bool:
        """Whether it was read from a wheel."""
        return ".whl sha256:" in self.source

    def allows_gfx(self, requested: Iterable[str]) -> bool:
        """Return whether the row allows its versions with all requested GPU architectures."""
        return not self.gfx or {*requested} <= {*self.gfx}


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of a package that one variable of its recipe switches on or off."""

    name: str
    """The package's own name for it, such as ``fused_adam``."""
    variable: str
    """Variable that is set to ``1`` to compile it, such as ``DS_BUILD_FUSED_ADAM``."""
    object: str
    """Glob of the shared object that it produces."""
    releases: ValidSpecifier = ""
    """Specifier of the releases that can build it; empty means all of the recipe's."""
    host: bool = False
    """Whether it has no GPU code, such as DeepSpeed's ``cpu_adam``."""


class Recipe(_OfReleases, frozen=True, kw_only=True):
    """How some releases of a package are built for one backend.

    `environment`, `options` and `prepare` may contain placeholders: see `resolver.facts.placeholders`. A
    variable with an empty value is not set.
    """

    backend: Backend
    declared: tuple[ValidRequirement, ...] = ()
    """Build requirements in the source's own pyproject.toml (PEP 518)."""
    undeclared: tuple[ValidRequirement, ...] = ()
    """Build requirements that the source needs and does not declare."""
    match_runtime: tuple[str, ...] = ("torch",)
    """Build requirements that must have the same version at build time and at run time."""
    environment: dict[str, str] = {}
    options: tuple[str, ...] = ()
    """Build options for setuptools (``--build-option``)."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """Commands, as lists of words, run in the source tree before the wheel is built."""
    ops: tuple[Op, ...] = ()
    """Ops that can be chosen; by default those whose variable is ``1`` in `environment`."""
    all_ops: tuple[str, ...] = ()
    """Variables of `environment` that request all ops; they are removed if ops are chosen."""
    compiles: bool | None = None
    """Whether the build compiles something; by default, whether the source has extension modules."""
    must_contain: tuple[str, ...] = ()
    """Globs of wheel members, each of which must match at least one shared object."""
    imports: tuple[str, ...] = ()
    """Modules of the installed wheel that must be importable."""
    attributes: dict[str, str] = {}
    """Expected values, as text, of attributes of imported modules, by ``module:name``."""
    mpi: bool = False
    """Whether it is compiled against MPI: the base image's, or on the host the MPI of ``mpicc`` on PATH."""
    requirements: str = ""
    """Glob of the source's pip requirements file for this backend, which its build reads. If it is there, it
    takes the place of the requirements in the metadata of an sdist, which are those of the backend on which
    the sdist was made."""
    run_environment: dict[str, str] = {}
    """Environment variables that the installed package needs at run time."""
    source_has: tuple[str, ...] = ()
    """Globs of source files, each of which must match; some sdists lack files that they need to compile."""
    source_contains: dict[str, str] = {}
    """Text that a source file must contain, by file: evidence that the source reads the recipe's flags."""
    source_lacks: dict[str, str] = {}
    """Text that a source file must not contain, by file: evidence that it needs no other flags."""
    one_wave_size: bool = False
    """Whether the build uses the wave size that rocminfo reports for all architectures."""
    fixed_paths: dict[str, str] = {}
    """Specifiers of the releases whose source calls a program by a fixed path, by that path."""
    plain_targets: bool = False
    """Whether the source only accepts architectures without features (``:xnack+``)."""
    native_cpu: bool = False
    """Whether the source always compiles for the CPU of the build machine (``-march=native``)."""
    memory_per_job: float = 2.0
    """Peak memory of one compile job in GiB."""
    core_hours: float = 0.0
    """The compile time for one GPU architecture, or the least that is known; 0 if unknown."""
    cxx_standard: ValidVersion = ""
    """The C++ standard that the source sets, such as ``17``; empty if it uses torch's."""

    identity = ("package", "releases", "variant", "backend")


Rank = Literal["wrong results", "hang", "slow", "missing feature", "handled"]
"""Consequences of a known problem, the gravest first: wrong numbers without an error; a job that hangs or
crashes; a slow one; something that cannot be used; something that recipes or defaults avoid already."""


class KnownBad(Row, frozen=True, kw_only=True):
    """Versions that do not work together although other facts allow them."""

    combination: dict[str, ValidSpecifier]
    """Specifiers of the bad versions, by component (empty text: every version). Only a row that excludes
    nothing may name projects of an index."""
    id: str = ""
    """The name by which a warning refers to the row."""
    summary: str = ""
    """The problem and what to do, in at most 60 characters."""
    problem: str
    """The failure, in one sentence without a full stop."""
    effect: Literal["refuse", "unpublished", "warn", "explain"] = "refuse"
    """Excluded, excluded unless it is installed (nothing publishes what it requires), avoided where another
    version fits as well, or allowed like any other."""
    rank: Rank = "missing feature"
    """The gravest consequence: it decides what is a warning, and in which order (`is_shown`)."""
    except_variant: str = ""
    """A variant that does not have the problem, such as ``triton``, of a component of the combination."""
    from_image: dict[str, str] = {}
    """Installed files that the site's recipe replaces because of it, each with that file of the image."""
    backend: Backend | None = None
    """Only for this backend."""
    gfx: tuple[str, ...] = ()
    """Only for these GPU architectures; empty means all."""
    site: str = ""
    """Only at this site."""

    identity = ("combination", "backend", "gfx", "site")

    def key(self) -> tuple[object, ...]:
        """Return the identity; a table has no hash."""
        return (*sorted(self.combination.items()), self.backend, self.gfx, self.site)

    @property
    def excludes(self) -> str:
        """Why no release may be chosen, as a predicate; empty if one may be."""
        verbs = {"refuse": "does not work", "unpublished": "cannot be installed"}
        return f"{verbs[self.effect]}: {self.problem}" if self.effect in verbs else ""

    @property
    def is_grave(self) -> bool:
        """Whether results may be wrong, or a job may hang: job scripts and runs say so, too."""
        return self.rank in {"wrong results", "hang"}

    @property
    def is_shown(self) -> bool:
        """Whether an answer that contains the combination says so; `matrix explain` always does."""
        return self.is_grave or (self.effect == "warn" and self.rank != "handled")

    @property
    def title(self) -> str:
        """The combination as text."""
        return ", ".join(f"{name} {versions}".strip() for name, versions in self.combination.items())


class ProvenSet(Row, frozen=True, kw_only=True):
    """A set of versions that were run together."""

    id: str
    site: str = ""
    date: datetime.date | None = None
    """The day on which it is known to have worked, or was last changed; None if not recorded."""
    picks: dict[str, str]
    """Versions by component (``name = "version"``, or ``"version (variant)"``)."""
    backend: Backend = "rocm"
    tier: Literal[1, 2] = 2
    """1: everything in it is recorded and published, so it must resolve. 2: old, partly unknown,
    with a nightly or custom build of torch, or from another machine; only reported."""
    left_out: tuple[str, ...] = ()
    """Parts of the set that the catalog cannot describe, as text."""

    identity = ("id",)


class Package(Row, frozen=True, kw_only=True):
    """An extension package with recipes or published wheels."""

    name: str
    title: str
    import_name: str = ""
    default_variant: str = ""
    """The name of the variant that releases without a variant and commits have, such as ``ck``."""
    pypi: str = ""
    """The project of this name on PyPI: ``same``, ``other project`` or ``none``."""
    system_rocm: bool = False
    """Whether its wheels use the ROCm of the system, so that a container needs a base image with ROCm."""
    must_load: tuple[str, ...] = ()
    """Patterns of shared objects in its wheels that its import does not load, and that must load."""
    unneeded_by: tuple[str, ...] = ()
    """Distributions that require it, and work without it: they import it only if it is there."""

    identity = ("name",)


class WrongName(Row, frozen=True, kw_only=True):
    """A project of an index whose name is mistaken for the name of another project."""

    name: str
    """Normalized name of the project."""
    project: str
    """What it is, to follow the word "is"."""
    means: tuple[str, ...]
    """The projects that are usually meant, the most likely first."""
    stub: bool = False
    """Whether it cannot be installed or has no content, so that no requirement on it can be met."""

    identity = ("name",)


class Replaces(Row, frozen=True, kw_only=True):
    """What an environment for CUDA or for CPUs has, and what takes its place on ROCm."""

    name: str
    """Normalized name of the distribution; ``*`` stands for any text."""
    conda: bool = False
    """Whether it is a package of conda."""
    image: bool = False
    """Whether it is a container image, without its tag."""
    by: tuple[str, ...] = ()
    """Distributions that take its place."""
    effect: Literal["rocm", "cpu", "drop", "none"]
    """``rocm``: they use the GPU; ``cpu``: only the CPU; ``drop``: ROCm and torch have what it gives."""
    unneeded_by: tuple[str, ...] = ()
    """Distributions that require it, mostly by an extra, and work on AMD GPUs and CPUs without it."""

    identity = ("name", "conda")


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One catalog file. In a file with one ``[[package]]``, rows may leave out `package`."""

    schema: int
    include: list[str] = []
    """Other catalog files, relative to this file, that form a layer below it."""
    rocm: list[Rocm] = []
    driver: list[Driver] = []
    driver_module: list[DriverModule] = []
    gfx: list[Gfx] = []
    python: list[Python] = []
    torch: list[Torch] = []
    image: list[Image] = []
    site: list[Site] = []
    partition: list[Partition] = []
    job: list[Job] = []
    window: list[Window] = []
    site_image: list[SiteImage] = []
    site_advice: list[SiteAdvice] = []
    site_variable: list[SiteVariable] = []
    package: list[Package] = []
    release: list[Release] = []
    wheel: list[Wheel] = []
    requires: list[Requires] = []
    recipe: list[Recipe] = []
    known_bad: list[KnownBad] = []
    proven: list[ProvenSet] = []
    wrong_name: list[WrongName] = []
    replaces: list[Replaces] = []


KINDS = tuple(field for field in CatalogFile.__struct_fields__ if field not in {"schema", "include"})
"""Names of the kinds of rows, as attributes of `CatalogFile` and `Catalog`."""
