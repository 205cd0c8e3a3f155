"""The wheels that a build needs: torch, the build requirements, and wheels that we have built.

The requirements of a source are known for certain only when it is built: the build may compute them.
"""

from __future__ import annotations

from contextlib import suppress
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

from builders.index.pages import metadata_of
from builders.network.urls import mirrored
from builders.storage.files import cache_root, cached_file
from builders.wheels.labelling import pin_requirements
from resolver.environment import Environment
from resolver.errors import BuildError, MatrixError, UsageError
from resolver.indexes import IndexStrategy, StatedMetadata
from resolver.requirements import TRITON_NAMES, parse_requirement, required_name, version_in
from resolver.versions import is_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builders.building.plan import Task
    from builders.environments.wheelhouse import FetchedWheel, FetchOptions
    from builders.index import Index
    from resolver.indexes import Metadata
    from resolver.model import Distribution, Requirement, Resolution
    from resolver.reporter import Reporter


_FRONTEND = "build"
"""The distribution that calls the backend (PEP 517) beside the build requirements."""


def unmet_requirements(
    resolution: Resolution, wheels: Mapping[str, Sequence[Path]], filenames: Iterable[str] = ()
) -> list[str]:
    """Return, as text, the requirements of our wheels that no lock, override or file of these meets."""
    names = tuple(filenames)
    texts = {name: [text for path in paths for text in texts_in(path)] for name, paths in wheels.items()}
    return list(
        dict.fromkeys(
            f"{requirement.name}{requirement.specifier or ''}, which the wheel of {pick.name} requires"
            for pick, requirement in unmet(resolution, texts)
            if not any(_is_met(requirement, version_in(name, requirement.name)) for name in names)
        )
    )


def unmet(
    resolution: Resolution, texts: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Distribution, Requirement]]:
    """Yield the requirements in `texts`, by the name of what has them, that nothing in the lock meets."""
    preinstalled, environment = resolution.request.preinstalled, environment_of(resolution)
    versions = dict(preinstalled.installed) if preinstalled else {}
    versions |= {pick.name: pick.pinned for pick in resolution.distributions}
    overridden = {requirement.name for requirement in resolution.request.overrides}
    for pick in resolution.distributions:
        for requirement in _applying(texts.get(pick.name, ()), environment):
            is_met = _is_met(requirement, versions.get(requirement.name))
            if not is_met and requirement.name not in overridden:
                yield pick, requirement


def stated_by(task: Task, metadata: Metadata) -> StatedMetadata:
    """Return what a source states, or its wheel, as the lock keeps it.

    Labels decide on what they pin, so the requirement on it has no versions there, unless nothing but the
    source says which versions work: then its recipe is a draft.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet

    pins = {name: pin for pin in task.pins for name in (pin.name, *pin.replaces)}
    kept: list[str] = []
    for text in pin_requirements(metadata.requires, ())[0]:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            kept.append(text)
            continue
        name = canonicalize_name(requirement.name)
        pin = pins.get(name)
        is_of_label = pin is not None and str(requirement.specifier) == f"=={pin.version}"
        if pin is not None and (task.pick.recipe is None or is_of_label or name in TRITON_NAMES):
            requirement.specifier, requirement.url = SpecifierSet(), None
        kept.append(str(requirement))
    pick = task.pick
    return StatedMetadata(
        pick.name, pick.version, pick.source_digest, tuple(sorted({*kept})), tuple(sorted(metadata.extras))
    )


def texts_in(wheel: Path) -> tuple[str, ...]:
    """Return the requirements of a wheel; none if it cannot be read."""
    with suppress(MatrixError, OSError):
        rows = BytesHeaderParser().parsebytes(metadata_of(wheel)).get_all("Requires-Dist", [])
        return tuple(" ".join(str(row).split()) for row in rows)
    return ()


def _is_met(requirement: Requirement, version: str | None) -> bool:
    if not version:
        return False
    specifier = requirement.specifier
    return specifier is None or (is_version(version) and specifier.allows(version))


def environment_of(resolution: Resolution) -> Environment:
    """Return the environment that a lock is for."""
    target = resolution.target
    return Environment(target.python or resolution.version_of("python"), target.glibc or "")


def requirements_in(wheel: Path, environment: Environment) -> Iterator[Requirement]:
    """Yield the requirements of a wheel that apply to an environment; none if the wheel cannot be read."""
    return _applying(texts_in(wheel), environment)


def _applying(texts: Iterable[str], environment: Environment) -> Iterator[Requirement]:
    for text in texts:
        with suppress(UsageError, ValueError):
            requirement = parse_requirement(text)
            if environment.applies(requirement.marker):
                yield requirement


class Limits(msgspec.Struct, frozen=True):
    """Limits of a build; None means the limits of the machine."""

    jobs: int | None = None
    memory: float | None = None
    """GiB of all processes."""
    memory_per_job: float | None = None
    """GiB of one compile job; None means the value of the recipe."""
    jobserver: Path | None = None
    """The named pipe through which this build shares its compile jobs with others."""
    until: float | None = None
    """When to stop, in seconds since the epoch."""
    offline: bool = False
    compiler_cache: str | None = None
    """Path of ccache, or ``none``; None searches PATH."""
    mirrors: Mapping[str, str] = {}
    strategy: IndexStrategy = "unsafe-best-match"
    """Which of the configured indexes count for a build requirement."""


def required_wheels(task: Task, index: Index) -> list[Path]:
    """Return the wheels of the index that this build requires."""
    wheels = []
    for required in task.requires:
        published = index.find(required.pick.name, required.build_key)
        if published is None:
            msg = f"Building {task.title} requires {required.title}, which is not in the index."
            hint = f"Build it first with `matrix farm build-one {required.build_key[:12]}`."
            raise BuildError(msg, hint=hint)
        wheels.append(published.path)
    return wheels


def requirements_of(task: Task, wheels: Sequence[Path] = ()) -> tuple[str | None, list[str]]:
    """Return the requirements to build and check a wheel: torch at the version of the lock, and all others.

    Required wheels that we build ourselves are left out, but their run requirements are included; `wheels`
    are those that exist already.
    """
    behind = _behind(task, wheels)
    versions = {pin.name: f"{pin.name}=={pin.version}" for pin in task.pins if pin.name != "torch"}
    stated = [versions.get(text, text) for text in (*task.recipe.declared, *task.recipe.undeclared)]
    requirements = dict.fromkeys([*stated, *behind, _FRONTEND])
    ours = {required.pick.name for required in task.requires}
    for text in [text for text in requirements if required_name(text) in ours]:
        del requirements[text]
    torch = None
    if task.torch is not None and "torch" not in ours and (task.needs_torch or "torch" in requirements):
        requirements.pop("torch", None)
        torch = f"torch=={task.torch.version}"
    return torch, sorted(requirements)


def _behind(task: Task, wheels: Sequence[Path]) -> list[str]:
    """Return the run requirements of the wheels that we build; only its wheel has those of a commit."""
    lock = task.resolution
    names = [required.pick.name for required in task.requires]
    ours = set(names)
    environment = environment_of(lock)
    listed = [requirement for path in wheels for requirement in requirements_in(path, environment)]
    names += [requirement.name for requirement in listed]
    unlocked = [requirement.text for requirement in listed if lock.pick(requirement.name) is None]
    for name in names:
        rows = (edge.object for edge in lock.edges if (edge.subject, edge.kind) == (name, "run"))
        names += [other for other in rows if other not in names]
    picks = [pick for name in names if name not in ours and (pick := lock.pick(name))]
    distributions = [pick for pick in picks if pick.kind == "distribution" and pick.origin == "published"]
    locked = ["torch" if pick.name == "torch" else f"{pick.name}=={pick.version}" for pick in distributions]
    return [*locked, *unlocked]


def wheels_of(
    task: Task, limits: Limits, log: Path, reporter: Reporter
) -> tuple[set[str], tuple[FetchedWheel, ...]]:
    """Fetch torch and the build requirements; return the hashes that were cached before, and all wheels."""
    from builders.environments.layers import fetch_build_wheels

    built = [required.wheel for required in task.requires if required.wheel]
    torch, requirements = requirements_of(task, built)
    before = {path.name for path in (cache_root() / "wheels").glob("*")}
    fetching = fetching_of(task, limits, log=log, reporter=reporter)
    build_host = task.build_host
    wheelhouses = fetch_build_wheels(
        build_host.runtime, build_host.python, torch=torch, requirements=requirements, options=fetching
    )
    return before, tuple(wheel for one in wheelhouses if one for wheel in one.wheels)


def fetching_of(task: Task, limits: Limits, *, log: Path, reporter: Reporter) -> FetchOptions:
    """Return the options for fetching a build's wheels; fetch torch if the lock has its files."""
    from builders.environments.wheelhouse import FetchOptions

    picks = map(task.resolution.pick, ("torch", *task.recipe.match_runtime))
    indexes = dict.fromkeys(pick.index for pick in picks if pick and pick.index)

    def mirror(url: str) -> str:
        return mirrored(url, limits.mirrors)

    torch = _torch_of_lock(task.resolution, limits, reporter) if requirements_of(task)[0] else ()
    return FetchOptions(
        log=log,
        reporter=reporter,
        indexes=[*indexes],
        mirrored=mirror,
        offline=limits.offline,
        torch=torch,
        strategy=limits.strategy,
        rocm=f"rocm[devel]=={task.pip_rocm}" if task.pip_rocm else "",
        gfx=task.gfx[0] if task.gfx else "",
    )


def _torch_of_lock(resolution: Resolution, limits: Limits, reporter: Reporter) -> tuple[FetchedWheel, ...]:
    """Fetch torch and everything that it requires; return no wheels unless the lock has all of them.

    Requirements are read from the wheels, because a lock leaves out edges that close a cycle.
    """
    from builders.environments.wheelhouse import FetchedWheel
    from builders.network.download import Downloads
    from builders.sources.fetch import fetch_file

    if not resolution.is_complete:
        return ()
    downloads = Downloads(limits.mirrors, reporter)
    environment = environment_of(resolution)
    wheels: dict[str, FetchedWheel] = {}
    waiting = ["torch"]
    while waiting:
        name = waiting.pop()
        pick = resolution.pick(name)
        if name in wheels:
            continue
        if pick is None or pick.origin != "published" or pick.is_sdist or not pick.files[0].sha256:
            return ()
        file = pick.files[0]
        if not cached_file(file).exists():
            reporter.step(f"fetch {file.name}")
            downloads.expected += file.size
        fetch_file(file, downloads, offline=limits.offline)
        path = cached_file(file)
        wheels[name] = FetchedWheel(name, pick.version, file.name, file.sha256, path.stat().st_size)
        waiting += [edge.object for edge in resolution.edges if (edge.subject, edge.kind) == (name, "run")]
        waiting += [requirement.name for requirement in requirements_in(path, environment)]
    return tuple(wheels[name] for name in sorted(wheels))
