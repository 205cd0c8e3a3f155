"""Compare the requirements of our wheels with a lock.

The requirements of a source are known for certain only when it is built, because the build may compute them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from builders.wheels.wheel import DamagedError
from resolver.environment import Environment
from resolver.errors import UsageError
from resolver.facts.schema import Package, Requires
from resolver.requirements import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Row
    from resolver.model import Distribution, Requirement, Resolution


def unmet_requirements(resolution: Resolution, wheels: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return, as text, the requirements of our wheels that a lock does not meet.

    Requirements that the request overrides are ignored. `matrix index check` reports wheels that cannot be
    read.
    """
    return list(
        dict.fromkeys(
            f"{requirement.name}{requirement.specifier or ''}, which the wheel of {pick.name} requires"
            for pick, _, requirement in _unmet(resolution, wheels)
        )
    )


def unlocked_requirements(
    resolution: Resolution, wheels: Mapping[str, Sequence[Path]], catalog: Catalog
) -> list[Row]:
    """Return the requirements of our wheels that a lock does not meet, as rows for the catalog.

    A distribution that the catalog does not have also gets a row.
    """
    rows: dict[tuple[object, ...], Row] = {}
    for pick, wheel, requirement in _unmet(resolution, wheels):
        source = f"Requires-Dist of {wheel.name}"
        name = requirement.name
        if name not in catalog.package:
            rows[name,] = Package(name=name, title=name, status="observed", source=source)
        row = Requires(
            package=pick.name,
            releases=f"=={pick.version}",
            variant=pick.variant or None,
            backend=resolution.target.backend,
            on=name,
            versions=(str(requirement.specifier or ">=0"),),
            status="observed",
            source=source,
        )
        rows[row.key()] = row
    return list(rows.values())


def _unmet(
    resolution: Resolution, wheels: Mapping[str, Sequence[Path]]
) -> Iterator[tuple[Distribution, Path, Requirement]]:
    preinstalled, environment = resolution.request.preinstalled, environment_of(resolution)
    versions = dict(preinstalled.installed) if preinstalled else {}
    versions |= {pick.name: pick.pinned for pick in resolution.distributions}
    overridden = {requirement.name for requirement in resolution.request.overrides}
    for pick in resolution.distributions:
        for wheel in wheels.get(pick.name, ()):
            for requirement in requirements_in(wheel, environment):
                version, specifier = versions.get(requirement.name, ""), requirement.specifier
                is_met = version and (specifier is None or specifier.allows(version))
                if not is_met and requirement.name not in overridden:
                    yield pick, wheel, requirement


def environment_of(resolution: Resolution) -> Environment:
    """Return the environment that a lock is for."""
    target = resolution.target
    return Environment(target.python or resolution.version_of("python"), target.glibc or "")


def requirements_in(wheel: Path, environment: Environment) -> Iterator[Requirement]:
    """Yield the requirements of a wheel that apply to an environment; none if the wheel cannot be read."""
    from builders.index_client.metadata import from_wheel

    try:
        texts = from_wheel(wheel).requires
    except (DamagedError, OSError):
        return
    for text in texts:
        with suppress(UsageError, ValueError):
            requirement = parse_requirement(text)
            if environment.applies(requirement.marker):
                yield requirement
