"""The installation that a lock describes, as every consumer needs it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from builders.network.urls import public_index
from matrix.show.render import shortened
from matrix.show.resolution_text import title_of
from resolver.errors import UsageError
from resolver.facts.schema import PLATFORM
from resolver.requirements import is_rocm_package
from resolver.versions import is_version

if TYPE_CHECKING:
    from pathlib import Path

    from resolver.facts.schema import Job, SiteVariable
    from resolver.model import Distribution, Resolution


TYKKY_MODULE = "LUMI lumi-container-wrapper"
"""LUMI's modules that have tykky."""


class Installation(msgspec.Struct, frozen=True, dict=True):
    """The installation that a lock describes.

    Parameters
    ----------
    lock
        The resolution.
    hashes
        SHA-256 of the files that may be installed, by distribution; empty unless hashes were requested.
    left_open
        Descriptions of the dependencies that the lock leaves open.
    variables
        Environment variables that must be set at the site or for built distributions, or must not be set.
    job
        How the site starts programs in Slurm jobs; None if it is not known.
    has_compiler
        Whether the base image is known to have a compiler, which triton and torch.compile need at run time.
    wheels
        The wheels of each distribution that we build, by name; none if it is not built yet.
    named
        File names of the wheels that must be named, by distribution: the index has other builds of the same
        version, which pip would prefer.
    host_glibc
        The glibc of the machine that a consumer without base image runs on, and a name of the machine.
    """

    lock: Resolution
    hashes: Mapping[str, tuple[str, ...]] = {}
    left_open: Sequence[str] = ()
    variables: Sequence[SiteVariable] = ()
    has_compiler: bool = False
    wheels: Mapping[str, Sequence[Path]] = {}
    named: Mapping[str, str] = {}
    host_glibc: tuple[str, str] = ("", "")
    job: Job | None = None

    def __post_init__(self) -> None:
        """Check that the lock fixes the Python version."""
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
    def sdists(self) -> list[Distribution]:
        """The distributions that pip must build, because they have no wheel for the target."""
        return [pick for pick in self.installed if pick.is_sdist]

    @property
    def pip_variables(self) -> dict[str, str]:
        """Variables for a pip that another tool starts.

        If the lock has an sdist, no variable is set, because pip passes variables on to the pip that installs
        build requirements. pip then checks the pins against the requirements of each distribution.
        """
        complete = {"PIP_NO_DEPS": "1"} if self.is_complete and not self.sdists else {}
        return complete | self.rocm_variables

    @property
    def rocm_variables(self) -> dict[str, str]:
        """Variables for a pip that installs ROCm's own pip packages; empty if the lock has none.

        pip takes the ``rocm`` that it built before from its cache, whatever the variables say now.
        """
        named = self.rocm_build_variables
        return {**named, "PIP_NO_CACHE_DIR": "1"} if named else {}

    @property
    def rocm_build_variables(self) -> dict[str, str]:
        """Variables that name the GPU to ROCm's own pip packages; empty if the lock has none.

        The sdist ``rocm`` chooses its requirements when it is built, for the GPU of the machine. A login node
        has none, so it would choose another. Source:
        ROCm/TheRock@89553ce37:docs/packaging/python_packaging.md and the README of rocm-bootstrap.
        """
        targets = self.lock.target.gfx
        if not targets or not any(map(_installs_rocm, self.installed)):
            return {}
        return {
            "ROCM_SDK_TARGET_FAMILY": targets[0],
            "ROCM_BOOTSTRAP_FORCE_GFX_ARCH": ",".join(targets),
        }

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
    def container_modules(self) -> list[str]:
        """The modules of the site that bind file systems into containers of this base image."""
        image = self.lock.version_of("base-image")
        modules = self.job.modules if self.job else {}
        return [
            name for pattern in modules if fnmatch.fnmatchcase(image, pattern) for name in modules[pattern]
        ]

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


def left_to_pip(installation: Installation) -> tuple[str, str]:
    """Return a sentence with the dependencies that the lock leaves to pip, and a hint on how to lock them."""
    lock, reasons = installation.lock, installation.left_open
    from_git = any(not pick.files for pick in installation.built)
    published = [pick for pick in installation.installed if pick.origin == "published"]
    if from_git and (lock.is_complete or not (lock.left_open or published)):
        hint = (
            "The requirements of a wheel are known after its build: `matrix build-container` locks them. "
            "Or `matrix catalog learn WHEEL --apply` writes them into a file of facts: name it with "
            "--catalog, and resolve again."
        )
    elif not lock.is_complete:
        hint = "To lock everything, run `matrix resolve` with network access."
    else:
        hint = "Add the missing distributions to the request, and resolve again."
    listed = shortened((reason.rstrip(".") for reason in reasons), most=2, separator="; ")
    return f"The lock leaves to pip: {listed or 'other dependencies'}.", hint


def index_of(pick: Distribution) -> str:
    """Return the URL of the index of a published distribution; empty for PyPI, the default of pip and uv."""
    return "" if pick.index.rstrip("/") == public_index().rstrip("/") else pick.index


def _installs_rocm(pick: Distribution) -> bool:
    """Return whether a distribution is a pip package of ROCm, or requires some."""
    return is_rocm_package(pick.name) or any(extra.startswith("device-") for extra in pick.extras)


def pin(pick: Distribution) -> str:
    """Return the requirement that installs exactly this distribution.

    The version includes the local label, which PyPI rejects, so that no public index can serve it.
    """
    return f"{pick.name}=={pick.pinned}"


def wheel_only(pick: Distribution) -> bool:
    """Return whether pip must not build a distribution: we build it, or the lock names its wheel."""
    return pick.origin == "build" or pick.wheel is not None or (bool(pick.files) and not pick.is_sdist)
