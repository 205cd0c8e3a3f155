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

import datetime
import os
from typing import ClassVar, Literal

import msgspec

SCHEMA = 1
_HERE = os.path.dirname(__file__)

Status = Literal["documented", "observed", "inferred"]
Backend = Literal["rocm", "cpu"]
EdgeKind = Literal["run", "build"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab", gc=False):
    """What every row carries."""

    status: Status
    source: str
    """Where the fact stands: a URL, or ``owner/repository@commit:path``, several joined by `` ; ``."""
    note: str = ""
    """What a person should know besides: a contradiction, a limit, a condition."""
    from_file: str = ""
    """The file it stands in; set when it is read."""
    from_line: int = 0
    """The line of that file on which it begins, from 1; set when it is read."""

    identity: ClassVar[tuple[str, ...]] = ()
    """The keys that say which row it is: a row of an overlay replaces the one with the same values."""
    widening: ClassVar[bool] = False
    """Whether rows with the same identity may stand side by side in one layer, each allowing more."""

    def key(self) -> tuple[object, ...]:
        """Give the values of the keys that identify the row."""
        return tuple(getattr(self, name) for name in self.identity)

    @property
    def file(self) -> str:
        """The file it stands in, the same on every machine if it is a shipped one."""
        return self.from_file.replace(_HERE, "resolver/facts", 1)


class Rocm(Row, frozen=True, kw_only=True):
    """A release of the ROCm user space."""

    version: str
    gfx: tuple[str, ...] = ()
    """Offload targets that AMD's matrix names for it."""
    released: datetime.date | None = None

    identity = ("version",)


class Driver(Row, frozen=True, kw_only=True):
    """A minor line of AMD's kernel driver, and the user space lines its table lists for it."""

    version: str
    supports: tuple[str, ...]
    """ROCm major.minor lines that the table marks as supported."""
    unsupported: tuple[str, ...] = ()
    """Lines that the table has and does not mark. Of a line in neither list the table says nothing."""

    identity = ("version",)


class DriverModule(Row, frozen=True, kw_only=True):
    """What a driver release says of itself in ``/sys/module/amdgpu/version``: another number."""

    driver: str
    """Release of the driver, such as ``6.0.3``."""
    module: str
    """The kernel module's own version, such as ``6.3.6``."""
    package: str = ""
    """The dkms package, such as ``6.3.6.60003-1739731``."""

    identity = ("driver",)


class Gfx(Row, frozen=True, kw_only=True):
    """An offload target."""

    target: str
    products: tuple[str, ...] = ()

    identity = ("target",)


class Python(Row, frozen=True, kw_only=True):
    """A minor version of CPython."""

    version: str

    identity = ("version",)


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
    platform_tag: str = ""
    """Platform tag of its wheels, such as ``manylinux_2_28_x86_64``."""
    bundles_rocm: bool | None = None
    """Whether the wheel carries its own ROCm user space in ``torch/lib``."""
    cxx11_abi: bool | None = None
    """Whether it is compiled with the C++11 ABI of libstdc++ (``_GLIBCXX_USE_CXX11_ABI=1``)."""
    cxx_standard: str = ""
    """Oldest C++ standard that its headers compile with, such as ``17``."""
    numpy: str = ""
    """Which numpy it works with, in words of its makers."""

    identity = ("version",)


INSPECTED = "inspection of "
"""How the source of a row begins that was made by looking into the image."""


class Image(Row, frozen=True, kw_only=True):
    """A base image in which extensions are compiled and containers are made."""

    name: str
    rocm: str = ""
    """The ROCm release in it; empty for an image without ROCm."""
    os: str = ""
    """Name of the distribution release; empty where nobody documented it."""
    glibc: str = ""
    """Its glibc; empty where nobody documented it, and then nothing is checked against it."""
    libstdcxx: str = ""
    """GCC release of its libstdc++, such as ``13.2``."""
    path: str = ""
    """Where the site keeps it, or the address to pull it from (``docker://...``)."""
    digest: str = ""
    """``sha256:...`` of the image, where published."""
    dockerhash: str = ""
    """First digits of the digest of the image it was made from, where published."""
    compilers: tuple[str, ...] = ()
    """Names of the host C and C++ compilers."""
    python: tuple[str, ...] = ()
    """CPython minors in the image; none means that the Python comes from elsewhere (conda)."""
    mpi: str = ""
    holds: dict[str, str] = {}
    """Distributions that are installed in it (``torch = "2.9.1+rocm6.4"``)."""

    identity = ("name",)


class Site(Row, frozen=True, kw_only=True):
    """A named target."""

    name: str
    title: str
    backend: Backend
    """What is built for when the request does not say."""
    gfx: tuple[str, ...] = ()
    public_images: bool = False
    """Whether it offers every base image that can be pulled (its path names a registry)."""

    identity = ("name",)


class Partition(Row, frozen=True, kw_only=True):
    """A Slurm partition of a site."""

    site: str
    name: str
    backend: Backend
    """``rocm`` where the nodes have the site's GPUs."""
    use: str = ""
    """What it is for, in words."""
    nodes: int = 0
    """Number of nodes; 0 where nobody documented it."""
    max_hours: float = 0.0
    """Longest run time of a job in hours; 0 where nobody documented it."""

    identity = ("site", "name")


class Window(
    Row,
    frozen=True,
    kw_only=True,
    rename={"since": "from", "from_file": "from-file", "from_line": "from-line"},
):
    """What kernel driver a site had, from one day to another."""

    site: str
    since: datetime.date
    until: datetime.date | None = None
    """The first day on which it no longer holds."""
    driver: str
    """Minor line of AMD's driver."""
    package: str = ""
    """The driver package as the site names it."""

    identity = ("site", "since")


class SiteImage(
    Row,
    frozen=True,
    kw_only=True,
    rename={"since": "from", "from_file": "from-file", "from_line": "from-line"},
):
    """That a site offers a base image, from one day to another."""

    site: str
    image: str
    since: datetime.date | None = None
    until: datetime.date | None = None

    identity = ("site", "image", "since")


class Sdist(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A source distribution on PyPI, pinned by its hash."""

    file: str
    sha256: str


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A commit of a git repository."""

    url: str
    commit: str
    submodules: tuple[str, ...] = ()
    """Submodules, or directories: each stands for all submodules at or below it, with all of their own."""


class Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A change to a source, as ``git diff`` writes it."""

    file: str
    """A file beside the catalog file that lists it."""
    sha256: str


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
    patches: tuple[Patch, ...] = ()
    """Applied to the unpacked source, in this order."""

    identity = ("package", "version", "variant")


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

    identity = ("package", "releases", "variant", "backend", "on", "kind", "when_present")
    widening = True


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of a package that is compiled or left out by one variable of its recipe."""

    name: str
    """As the package itself calls it, such as ``fused_adam``."""
    variable: str
    """Set to ``1`` to have it compiled, such as ``DS_BUILD_FUSED_ADAM``."""
    object: str
    """Glob of the shared object it gives."""
    releases: str = ""
    """Specifier over the releases that have it and can build it; empty means all of the recipe's."""
    host: bool = False
    """Nothing of it is compiled for a GPU, as DeepSpeed's ``cpu_adam``."""


class Recipe(Row, frozen=True, kw_only=True):
    """How some releases of a package are built for one backend.

    Texts of `environment`, `options` and `prepare` may hold placeholders such as ``{gfx}``, see
    `resolver.facts.placeholders`.
    """

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
    """Variables set for the build."""
    options: tuple[str, ...] = ()
    """Build options for setuptools (``--build-option``)."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """Commands, word by word, run one after another in the source tree before the wheel is built."""
    ops: tuple[Op, ...] = ()
    """What can be chosen; unless it is, those whose variable is ``1`` in `environment` are built."""
    all_ops: tuple[str, ...] = ()
    """Variables of `environment` that ask for all ops; they go when ops are chosen."""
    must_contain: tuple[str, ...] = ()
    """Globs over the wheel's members, each of which must match at least one shared object."""
    imports: tuple[str, ...] = ()
    """Modules that must import from the installed wheel."""
    attributes: dict[str, str] = {}
    """What an imported module must say of itself: ``module:name`` to the value as text."""
    op_table: str = ""
    """File of the wheel in which the build writes down which ops it compiled (``installed_ops``)."""
    run_environment: dict[str, str] = {}
    """Variables without which the installed package does not do what it was built for."""
    source_has: tuple[str, ...] = ()
    """Globs over the source tree, each of which must match; an sdist may lack what it compiles."""
    source_says: dict[str, str] = {}
    """File of the source to a text it must hold, or the recipe's flags mean nothing to this source."""
    source_lacks: dict[str, str] = {}
    """File of the source to a text it must not hold, or this source wants other flags."""
    one_wave_size: bool = False
    """The source asks rocminfo for the wave size and compiles it in, one for all targets."""
    only_at: dict[str, str] = {}
    """Program that the source calls by this path and looks for nowhere else, to the releases that do so."""
    plain_targets: bool = False
    """The source compares targets with a list of names, so features (``:xnack+``) cannot be asked."""
    native_cpu: bool = False
    """The source compiles for the CPU it is built on (``-march=native``) and has no switch for another."""
    memory_per_job: float = 2.0
    """Peak memory of one compile job in GiB."""
    cxx_standard: str = ""
    """The C++ standard that the source insists on, such as ``17``; empty where it takes torch's."""
    system: tuple[str, ...] = ()
    """System packages or programs the build needs, in words."""

    identity = ("package", "releases", "variant", "backend")


class KnownBad(Row, frozen=True, kw_only=True):
    """Versions that do not work together, though each fact about two of them would allow it."""

    combination: dict[str, str]
    """Component to the specifier of its bad versions (an empty text: every version)."""
    says: str
    """What goes wrong, in one sentence without a full stop."""
    effect: Literal["refuse", "warn"] = "refuse"
    """Whether the combination is no answer, or an answer with a warning."""
    backend: Backend | None = None
    """Only for this backend."""
    gfx: tuple[str, ...] = ()
    """Only if one of these offload targets is wanted; any target when empty."""
    site: str = ""
    """Only at this site."""

    identity = ("combination", "backend", "gfx", "site")

    def key(self) -> tuple[object, ...]:
        """Give the values of the keys that identify the row."""
        return (*sorted(self.combination.items()), self.backend, self.gfx, self.site)


class ProvenSet(Row, frozen=True, kw_only=True):
    """A set of versions that somebody ran together."""

    id: str
    site: str = ""
    date: datetime.date | None = None
    """The day on which it is known to have worked, or was last changed; None where not recorded."""
    picks: dict[str, str]
    """Component to version (``name = "version"``, or ``"version (variant)"``)."""
    backend: Backend = "rocm"
    tier: Literal[1, 2] = 2
    """1: everything in it is recorded and published, so it must resolve. 2: old, in part unknown,
    of nightly or own builds of torch, or of another machine: reported only."""
    left_out: tuple[str, ...] = ()
    """What the set has besides and the catalog cannot name, in words."""

    identity = ("id",)


class Package(Row, frozen=True, kw_only=True):
    """An extension package that the catalog knows how to build or where to find."""

    name: str
    title: str
    import_name: str = ""
    pypi: str = ""
    """What PyPI holds under this name: ``same``, ``other project`` or ``none``."""

    identity = ("name",)


class CatalogFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One file of the catalog. In a file with one ``[[package]]``, rows may leave `package` out."""

    schema: int
    include: list[str] = []
    """Other catalog files, relative to this one, over which this one is laid."""
    rocm: list[Rocm] = []
    driver: list[Driver] = []
    driver_module: list[DriverModule] = []
    gfx: list[Gfx] = []
    python: list[Python] = []
    torch: list[Torch] = []
    image: list[Image] = []
    site: list[Site] = []
    partition: list[Partition] = []
    window: list[Window] = []
    site_image: list[SiteImage] = []
    package: list[Package] = []
    release: list[Release] = []
    requires: list[Requires] = []
    recipe: list[Recipe] = []
    known_bad: list[KnownBad] = []
    proven: list[ProvenSet] = []


KINDS = tuple(field for field in CatalogFile.__struct_fields__ if field not in {"schema", "include"})
"""Names of the kinds of rows, as attributes."""
