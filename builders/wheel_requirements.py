"""Compare the requirements of our wheels with a lock.

The requirements of a source are known for certain only when it is built, because the build may compute them.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from builders.wheel import DamagedError
from resolver.environment import Environment
from resolver.errors import UsageError
from resolver.requirements import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resolver.model import Requirement, Resolution


def unmet_requirements(resolution: Resolution, wheels: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return, as text, the requirements of our wheels that a lock does not meet.

    Requirements that the request overrides are ignored. `matrix index check` reports wheels that cannot be
    read.

    Parameters
    ----------
    wheels
        The wheels of each distribution that we build.
    """
    preinstalled, environment = resolution.request.preinstalled, environment_of(resolution)
    versions = dict(preinstalled.installed) if preinstalled else {}
    versions |= {pick.name: pick.pinned for pick in resolution.distributions}
    overridden = {requirement.name for requirement in resolution.request.overrides}
    unmet: dict[str, None] = {}
    for name, paths in wheels.items():
        for requirement in chain.from_iterable(requirements_in(path, environment) for path in paths):
            version, specifier = versions.get(requirement.name, ""), requirement.specifier
            is_met = version and (specifier is None or specifier.allows(version))
            if not is_met and requirement.name not in overridden:
                unmet[f"{requirement.name}{specifier or ''}, which the wheel of {name} requires"] = None
    return list(unmet)


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
