"""What every consumer gets: the installation that a lock describes, and the layout of its files."""

from __future__ import annotations

import fnmatch
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.constants import MOUNT_POINT, MOUNTED_INDEX
from builders.network.urls import public_index
from builders.storage.files import sha256_of, write_atomic
from matrix.show.render import shortened
from matrix.show.resolution_text import title_of
from resolver.errors import UsageError
from resolver.facts.schema import PLATFORM
from resolver.requirements import is_rocm_package
from resolver.texts import printable
from resolver.versions import is_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Job, SiteVariable
    from resolver.model import Distribution, Resolution


TYKKY_MODULE = "LUMI lumi-container-wrapper"
"""LUMI's modules that have tykky."""

MARK = "written by `matrix env"
"""Text at the top of every written file, which a user's file of the same name does not have."""
_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_HEAD = 1000  # bytes that are searched for the mark


def mpi_modules_of(catalog: Catalog, lock: Resolution) -> Mapping[str, str]:
    """Return the modules with which mpi4py uses the site's MPI; none for an image with modules of its own."""
    job, image = catalog.job.get(lock.target.site), catalog.image.get(lock.version_of("base-image"))
    if job is None or image is None or not lock.version_of("mpi4py") or not image.mpi.startswith("MPICH"):
        return {}
    has_own = any(fnmatch.fnmatchcase(image.name, pattern) for pattern in job.modules)
    return {} if has_own else job.mpi_modules


class Installation(msgspec.Struct, frozen=True, dict=True):
    """The installation that a lock describes."""

    lock: Resolution
    left_open: Sequence[str] = ()
    """Descriptions of the dependencies that the lock leaves open."""
    variables: Sequence[SiteVariable] = ()
    """Variables that must be set at the site or for built distributions, or must not be set."""
    has_compiler: bool = False
    """Whether the base image is known to have a compiler, which triton and torch.compile need at run time."""
    wheels: Mapping[str, Sequence[Path]] = {}
    """The wheels of each distribution that we build, by name; none if it is not built yet."""
    named: Mapping[str, str] = {}
    """File names of wheels that must be named, as the index has other builds, which pip would prefer."""
    host_glibc: tuple[str, str] = ("", "")
    """The glibc of the machine that a consumer without base image runs on, and a name of the machine."""
    job: Job | None = None
    """How the site starts programs in Slurm jobs, if known."""
    mpi_modules: Mapping[str, str] = {}
    """Modules of the site whose MPI replaces that of the base image; see `Job.mpi_modules`."""
    replacements: Mapping[str, Mapping[str, str]] = {}
    """Files that are replaced with files of the image after the installation; see `replacements_of`."""
    by_conda: Sequence[str] = ()
    """What conda installs besides Python."""
    problems: Sequence[str] = ()
    """Known problems that give wrong results or hang."""

    def __post_init__(self) -> None:
        if not self.python:
            msg = "The lock has no Python version."
            raise UsageError(msg, hint="Resolve with --python 3.12 (or another version).")

    @property
    def python(self) -> str:
        """CPython minor version."""
        return self.lock.target.python or self.lock.version_of("python")

    @property
    def is_complete(self) -> bool:
        """Whether the lock has everything that will be installed, so that pip need not resolve anything."""
        return self.lock.is_complete and not self.left_open

    @property
    def unpinned(self) -> list[str]:
        """The requirements of the request that an incomplete lock leaves to pip."""
        if self.lock.is_complete:
            return []
        decided = {*PLATFORM, *(pick.name for pick in self.lock.picks)}
        requirements = self.lock.request.requirements
        return [requirement.text for requirement in requirements if requirement.name not in decided]

    @cached_property
    def hashes(self) -> Mapping[str, tuple[str, ...]]:
        """The SHA-256 of the files that may be installed, by distribution, where all of them are known.

        Empty if pip must add dependencies to the lock, or if a wheel is not built yet: a file with hashes
        could not be installed.
        """
        if self.unbuilt or not self.is_complete:
            return {}
        locked = {
            pick.name: tuple(file.sha256 for file in pick.files)
            for pick in self.installed
            if all(file.sha256 for file in pick.files)
        }
        return locked | {name: tuple(map(sha256_of, paths)) for name, paths in self.wheels.items()}

    @cached_property
    def sdists(self) -> list[Distribution]:
        """The distributions that pip must build, because they have no wheel for the target."""
        return [pick for pick in self.installed if pick.is_sdist]

    @property
    def pip_variables(self) -> dict[str, str]:
        """Variables for a pip that another tool starts.

        None with an sdist in the lock, because that pip passes them on to the pip of build requirements.
        """
        complete = {"PIP_NO_DEPS": "1"} if self.is_complete and not self.sdists else {}
        return complete | self.rocm_variables

    @property
    def no_deps(self) -> str:
        """The option that keeps pip from resolving anything, if the lock is complete."""
        return "--no-deps " if self.is_complete else ""

    @property
    def image_digest(self) -> str:
        """The SHA-256 of the base image; empty without one."""
        return self.lock.image.digest.removeprefix("sha256:") if self.lock.image else ""

    @property
    def rocm_variables(self) -> dict[str, str]:
        """Variables for a pip that installs ROCm's packages; its cache may have another GPU's ``rocm``."""
        named = self.rocm_build_variables
        return {**named, "PIP_NO_CACHE_DIR": "1"} if named else {}

    @property
    def rocm_build_variables(self) -> dict[str, str]:
        """Variables that name the GPU to ROCm's own pip packages; empty if the lock has none.

        The sdist ``rocm`` chooses its requirements when it is built, for the GPU of the machine; a login node
        has none. Source: ROCm/TheRock@89553ce37:docs/packaging/python_packaging.md and the README of
        rocm-bootstrap.
        """
        targets = self.lock.target.gfx
        of_rocm = (
            is_rocm_package(pick.name) or any(extra.startswith("device-") for extra in pick.extras)
            for pick in self.installed
        )
        if not targets or not any(of_rocm):
            return {}
        return {"ROCM_SDK_TARGET_FAMILY": targets[0], "ROCM_BOOTSTRAP_FORCE_GFX_ARCH": ",".join(targets)}

    @property
    def rocm_note(self) -> list[str]:
        """A comment with these variables, for files that cannot set them."""
        settings = " ".join(f"{name}={value}" for name, value in self.rocm_variables.items())
        return [f"ROCm's pip packages are for one GPU. Install with {settings}"] if settings else []

    @property
    def image_path(self) -> str:
        """Path or URL of the base image, or its name if the site has neither; empty without an image."""
        image = self.lock.image
        return (image.path or image.name) if image else ""

    @property
    def load_of_tykky(self) -> str:
        """The end of a message that tykky is missing, for a script in double quotes."""
        on_lumi = self.lock.target.site.startswith("lumi")
        return rf"; on LUMI: \`module load {TYKKY_MODULE}\`" if on_lumi else ""

    @property
    def container_module(self) -> tuple[str, str] | None:
        """The directory and name of the site's module that binds file systems into this base image."""
        image, modules = self.lock.version_of("base-image"), self.job.modules if self.job else {}
        return next((modules[name] for name in modules if fnmatch.fnmatchcase(image, name)), None)

    @property
    def heading(self) -> str:
        """The target in a few words."""
        return f"{title_of(self.lock.target)}, Python {self.python}"

    @cached_property
    def installed(self) -> list[Distribution]:
        """The distributions that pip installs, in install order."""
        return [pick for pick in self.lock.distributions if pick.origin != "preinstalled"]

    @cached_property
    def preinstalled(self) -> list[Distribution]:
        """The distributions of the base image that the lock keeps."""
        return [pick for pick in self.lock.distributions if pick.origin == "preinstalled"]

    @property
    def built(self) -> list[Distribution]:
        """The distributions that must be in our index."""
        return [pick for pick in self.installed if pick.origin == "build"]

    @property
    def unbuilt(self) -> list[Distribution]:
        """The distributions whose wheels are not built yet."""
        return [pick for pick in self.built if not self.wheels.get(pick.name)]

    @property
    def incomplete(self) -> str:
        """What the lock leaves to pip, and how to lock it; empty if the lock is complete."""
        if self.is_complete:
            return ""
        lock, reasons = self.lock, (reason.rstrip(".") for reason in self.left_open)
        if lock.incomplete:
            hint = "`matrix build-wheels` locks what sources require before it compiles them."
        elif not lock.is_complete:
            hint = "To lock everything, run `matrix resolve` with network access."
        else:
            hint = "Add the missing distributions to the request, and resolve again."
        listed = shortened(reasons, most=2, separator="; ")
        return f"The lock leaves to pip: {listed or 'other dependencies'}. {hint}"

    @property
    def indexes(self) -> list[str]:
        """URLs of the wheel indexes other than ours and PyPI, each once."""
        return list(dict.fromkeys([*filter(None, map(index_of, self.installed)), *self.searched]))

    @property
    def searched(self) -> Sequence[str]:
        """URLs of the user's indexes, if pip must search them for what the lock leaves open."""
        return () if self.is_complete else self.lock.indexes

    def requirement(self, pick: Distribution, url: str = "") -> str:
        """Return the pin or URL of a distribution, with its extras if the lock may lack what they require."""
        extras = f"[{','.join(pick.extras)}]" if pick.extras and not self.is_complete else ""
        return f"{pick.name}{extras} @ {url}" if url else f"{pick.name}{extras}=={pick.pinned}"

    @property
    def preinstalled_torch(self) -> Distribution | None:
        """The torch of the base image, if the lock keeps it."""
        return next((pick for pick in self.preinstalled if pick.name == "torch"), None)

    @property
    def keeps_image(self) -> bool:
        """Whether the Python of the base image is extended, and its packages stay."""
        if self.preinstalled_torch is not None:
            return True
        kept, has_image = self.lock.request.preinstalled, self.lock.image is not None
        return has_image and kept is not None and not any(pick.name == "torch" for pick in self.installed)

    @cached_property
    def on_top(self) -> list[Distribution]:
        """Distributions to install on top of the base image, except those that only its packages need."""
        return [pick for pick in self.installed if pick.name not in self.needed_by_preinstalled]

    @cached_property
    def needed_by_preinstalled(self) -> frozenset[str]:
        """Distributions that only preinstalled packages require, and that therefore are already present."""
        requested = {requirement.name for requirement in self.lock.request.requirements}
        users: dict[str, set[str]] = {}
        for edge in self.lock.edges:
            if edge.kind == "run":
                users.setdefault(edge.object, set()).add(edge.subject)
        present = {pick.name for pick in self.preinstalled}
        needed: set[str] = set()
        # What only such distributions require is needed by them, too; so the set grows until nothing changes.
        while True:
            more = {
                pick.name
                for pick in self.installed
                if pick.origin == "published" and pick.name not in requested | needed
                if users.get(pick.name) and users[pick.name] <= present | needed
            }
            if not more:
                return frozenset(needed)
            needed |= more

    @property
    def other_preinstalled(self) -> dict[str, str]:
        """Versions, by name, of preinstalled distributions that the lock does not mention."""
        preinstalled = self.lock.request.preinstalled
        if preinstalled is None:
            return {}
        decided = {pick.name for pick in self.lock.distributions} | {"python", "rocm"}
        return {
            name: version
            for name, version in preinstalled.installed.items()
            if name not in decided and is_version(version)
        }


def index_of(pick: Distribution) -> str:
    """Return the URL of the index of a published distribution; empty for PyPI, the default of pip and uv."""
    return "" if pick.index.rstrip("/") == public_index().rstrip("/") else pick.index


def pin(pick: Distribution) -> str:
    """Return the exact requirement; no public index can serve it, because PyPI rejects its local label."""
    return f"{pick.name}=={pick.pinned}"


def wheel_only(pick: Distribution) -> bool:
    """Return whether pip must not build a distribution: we build it, or the lock names its wheel."""
    return pick.origin == "build" or pick.wheel is not None or (bool(pick.files) and not pick.is_sdist)


def comments(notes: Iterable[str]) -> list[str]:
    """Return notes for the reader of a file as lines of comments; no note can end its line."""
    return [f"# {printable(note)}".rstrip() for note in notes]


class WrittenFile(msgspec.Struct, frozen=True):
    """A file to write."""

    name: str
    text: str
    executable: bool = False


class Layout(msgspec.Struct, frozen=True):
    """The locations of the files and of the index."""

    main: str
    index: Path
    """The index directory of this machine, with symbolic links resolved."""
    url: str = ""
    """The URL of the index for the consumer, if the user named it."""
    folder: Path = Path()
    wheelhouse: Path | None = None
    """Directory with all files to install, with symbolic links resolved. If it is set, no index is used."""
    environment: Path | None = None
    """The finished container or environment, as an absolute path, for consumers that only use it."""

    @property
    def bound(self) -> Path:
        """The directory that scripts bind into a container."""
        return self.wheelhouse or self.index

    def binds(self, installation: Installation) -> bool:
        """Return whether a container needs that directory while it is built."""
        return self.wheelhouse is not None or (bool(installation.built) and not self.url)

    @property
    def what(self) -> str:
        """The name of that directory in messages."""
        return "wheelhouse" if self.wheelhouse else "index"

    @property
    def variable(self) -> str:
        """The variable that users set if that directory has moved."""
        return f"MATRIX_{self.what.upper()}"

    @property
    def local(self) -> str:
        """The URL of the wheels for consumers that can read the file systems of this machine."""
        return self.wheelhouse.as_uri() if self.wheelhouse else self.url or (self.index / "simple").as_uri()

    @property
    def mounted(self) -> str:
        """The URL of the wheels for consumers that run in a container into which the directory is bound."""
        return f"file://{MOUNT_POINT}" if self.wheelhouse else self.url or MOUNTED_INDEX

    def url_of(self, pick: Distribution, named: Mapping[str, str], wheels: str) -> str:
        """Return the URL of a distribution if only its URL identifies it, as for named wheels of ours."""
        if self.wheelhouse is not None:
            return ""
        return f"{wheels}/{pick.name}/{quote(named[pick.name])}" if pick.name in named else pick.direct_url


def files_in_wheelhouse(folder: Path, picks: Iterable[Distribution]) -> dict[str, str]:
    """Return the file name of each distribution whose file is in the directory."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    wheels: dict[tuple[str, Version], str] = {}
    for name in sorted(names):  # the last one has the highest build tag
        with suppress(InvalidWheelFilename, InvalidVersion):
            project, version, *_ = parse_wheel_filename(name)
            wheels[project, version] = name
    present = {}
    for pick in picks:
        locked = (file.name for file in pick.files if file.name in names)
        if name := next(locked, "") or wheels.get((pick.name, Version(pick.pinned)), ""):
            present[pick.name] = name
    return present


def write_files(files: Sequence[WrittenFile], folder: Path, *, named: bool) -> list[Path]:
    """Write all files, or none if one would replace a user's; the main file may, if the user named it."""
    paths = [folder / file.name for file in files]
    for path in paths[1:] if named else paths:
        if path.is_dir() or (path.exists() and not _is_ours(path)):
            msg = f"{path} exists and was not written by `matrix env`. Nothing was written."
            raise UsageError(msg, hint="Move or remove it, or name another directory with -o DIR.")
    for file, path in zip(files, paths, strict=True):
        write_atomic(path, file.text)
        if file.executable and path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & _READ) >> 2)  # whoever may read a script may run it
    return paths


def _is_ours(path: Path) -> bool:
    with path.open("rb") as source:
        return MARK.encode() in source.read(_HEAD)
