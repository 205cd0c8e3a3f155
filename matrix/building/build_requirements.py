"""Build requirements that pip needs to build the sdists of a lock offline (PEP 517, PEP 518)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from builders.index_client.metadata import top_files
from builders.pyproject import FILE, PyProject
from builders.sources import FetchResult
from builders.wheels.wheel import DamagedError
from resolver.answers.resolve import resolve
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError, UsageError
from resolver.model import Request, Resolution
from resolver.requirements import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from builders.sources import FetchedItem
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Distribution, Requirement

_LEGACY = ("setuptools>=40.8.0", "wheel")
"""The build requirements of a project without ``[build-system]``; older pips also need wheel."""


def fetch_build_requirements(
    lock: Resolution,
    sdists: Iterable[FetchedItem],
    catalog: Catalog,
    indexes: PackageIndexes | None,
    fetch: Callable[[Sequence[Distribution]], FetchResult],
) -> FetchResult:
    """Fetch the declared build requirements of sdists and their dependencies, for the Python of a lock.

    Every sdist is built in a separate environment, so its requirements are resolved separately.
    Distributions of the lock are not fetched again. Requirements that a build backend requests only when it
    runs are unknown.
    """
    target = replace(lock.target, backend="cpu", gfx=(), driver=None, rocm=None, base_image=None)
    result, left, seen = FetchResult(), list(sdists), set[str]()
    while left:
        sdist = left.pop()
        try:
            needed = tuple(needed for needed in _requires(sdist) if not _has(lock, needed))
            answer = _resolved(catalog, Request(target, needed), indexes)
        except MatrixError as error:
            result.warnings.append(
                f"The build requirements of {sdist.name} {sdist.version} are missing: "
                f"{error.message.rstrip('.')}. Add them with `pip download`."
            )
            continue
        picks = [pick for pick in answer.distributions if pick.files and str(pick) not in seen]
        seen |= set(map(str, picks))
        fetched = fetch(picks)
        left += [item for item in fetched.sources if item.kind == "sdist"]
        result += fetched
    return result


def _resolved(catalog: Catalog, request: Request, indexes: PackageIndexes | None) -> Resolution:
    """Return a complete resolution; raise `MatrixError` if there is none."""
    answer = resolve(catalog, request, indexes)
    if not isinstance(answer, Resolution):
        raise UsageError("; ".join(row.text for row in answer.core))
    if answer.left_open:
        msg = "No package index is configured or can be reached."
        raise EnvironmentLacksError(msg, hint="Check the network and pip's index.")
    return answer


def _requires(sdist: FetchedItem) -> list[Requirement]:
    """Return the build requirements that an sdist declares, or the default ones if it declares none."""
    try:
        with Path(sdist.path).open("rb") as content:
            text = top_files(Path(sdist.path).name, content, "", {FILE}).get(FILE)
        table = tomllib.loads(text.decode()) if text else {}
        project = msgspec.convert(table, PyProject)
    except (DamagedError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise SourceError(f"{sdist.origin} cannot be read: {error}") from None
    return list(map(parse_requirement, project.build_system.requires if "build-system" in table else _LEGACY))


def _has(lock: Resolution, requirement: Requirement) -> bool:
    """Return whether a lock has a distribution that meets a requirement."""
    pick = lock.pick(requirement.name)
    return pick is not None and (requirement.specifier is None or requirement.specifier.allows(pick.version))
