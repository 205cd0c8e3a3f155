"""Explain why preferred versions were not chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from resolver.answers.explain import explain_conflict
from resolver.answers.resolve import Search
from resolver.compiling import compile_problem
from resolver.compiling.problem import is_prerelease
from resolver.model import CoreItem, Resolution, layer
from resolver.requirements import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Distribution, Request, Requirement
    from resolver.solving.session import Refuted
    from resolver.versions import Specifier

MAX_REJECTED = 5


class Instead(msgspec.Struct, frozen=True):
    """A component that is decided earlier and would change: its chosen version, and the other."""

    component: str
    now: str
    then: str


class RejectedVersion(msgspec.Struct, frozen=True):
    """A preferred candidate that was not chosen, and why."""

    version: str
    """With its variant."""
    core: tuple[CoreItem, ...]
    """The facts that exclude it together with the request; empty if none does."""
    instead: Instead | UnsetType = UNSET
    """If no fact excludes it: what would change."""
    preferred: str | UnsetType = UNSET
    """If no fact excludes it: why the chosen version is preferred."""
    others: tuple[str, ...] | UnsetType = UNSET
    """What else would change for an older version: each component with its version."""


def search_naming(catalog: Catalog, request: Request, indexes: PackageIndexes | None, name: str) -> Search:
    """Return the search for a request that also names a component: what is named is decided first."""
    if name != "base-image" and all(requirement.name != name for requirement in request.requirements):
        request = replace(request, requirements=(*request.requirements, parse_requirement(name)))
    return Search(catalog, request, indexes)


def rejected_versions(
    search: Search,
    chosen: Resolution,
    name: str,
    *,
    specifier: Specifier | None = None,
    passed: bool = True,
) -> tuple[list[RejectedVersion], int]:
    """Return the preferred candidates of a component that were not chosen, each with the reason.

    Each is requested instead, so that the metadata on the indexes count. `MAX_REJECTED` candidates are
    explained, starting just above the chosen one; the second result is the number of others. If not `passed`,
    they are the candidates after the chosen one. `search` is that of `search_naming`.
    """
    request, indexes = search.request, search.indexes
    if name == "base-image" and request.target.base_image:
        return [], 0
    problem = compile_problem(search.catalog, request, open_world=indexes is not None)
    variable, pick = problem.variables.get(name), chosen.pick(name)
    if pick is None:
        return [], 0
    if variable is not None:
        versions = [
            (candidate.version, candidate.key, candidate.variant) for candidate in variable.candidates
        ]
    else:
        project = indexes.project(name) if indexes else None
        listed = [release.version for release in project.releases] if project else []
        versions = [(one, one, "") for one in listed if specifier is not None or not is_prerelease(one)]
    keys = [key for _, key, _ in versions]
    end = keys.index(pick.key) if pick.key in keys else 0
    other, _ = problem.preferences.get(name, ("", {}))
    other_pick = chosen.pick(other)
    others = reversed(versions[:end]) if passed else versions[end + 1 :]
    preferred = [row for row in others if specifier is None or specifier.allows(row[0])]
    rejected = []
    for version, key, variant in preferred[:MAX_REJECTED]:
        if name == "base-image":
            target = replace(request.target, base_image=version)
            of_image = Search(search.catalog, replace(request, target=target), indexes)
            found = _rejected(of_image, [], chosen, (name, key))
        else:
            pin = parse_requirement(f"{name}{f'[{variant}]' if variant else ''}=={version}")
            found = _rejected(search, [pin], chosen, (name, key))
        if other_pick and not (found.core or found.instead or found.preferred):
            text = f"{name} {pick.version} is preferred because it is in {other} {other_pick.version}"
            found = replace(found, preferred=text)
        rejected.append(found)
    return rejected, len(preferred) - len(rejected)


def _rejected(
    search: Search, pins: Sequence[Requirement], chosen: Resolution, version: tuple[str, str]
) -> RejectedVersion:
    """Return why a version was not chosen: the component and its key; `pins` require it.

    If the request resolves with it, the reason is a component that is decided earlier and conflicts with it
    in its chosen version, not just any component that changes, too.
    """
    (name, key), question = version, pins[0].text if pins else version[0]
    other = search.with_requirements(pins)
    if not isinstance(other, Resolution):
        return RejectedVersion(key, core=_core_without(search.request, other, question))
    requested = {requirement.name for requirement in chosen.request.requirements}
    own = layer(name, requested)[0]
    earlier = sorted(
        (pick for pick in chosen.picks if pick.name != name and layer(pick.name, requested)[0] <= own),
        key=lambda pick: layer(pick.name, requested),
    )
    changed = [(pick, then) for pick in earlier if (then := other.pick(pick.name)) and then.key != pick.key]
    for pick, then in changed:
        kept = _pin(pick)
        if kept is None:
            continue
        if not isinstance(search.with_requirements([*pins, kept]), Resolution):
            return RejectedVersion(key, (), instead=Instead(pick.name, pick.key, then.key))
    if changed:
        together = [kept for pick, _ in changed if (kept := _pin(pick))]
        answer = search.with_requirements([*pins, *together])
        if not isinstance(answer, Resolution):
            return RejectedVersion(key, core=_core_without(search.request, answer, question))
    now, then = chosen.pick(name), other.pick(name)
    if now and then and then.origin == "build" != now.origin:
        return RejectedVersion(key, (), preferred=f"{now.version} has a wheel for the target")
    return RejectedVersion(key, ())


def _pin(pick: Distribution) -> Requirement | None:
    """Return a requirement for the version of a pick; None if the request cannot name it."""
    variant = f"[{pick.variant}]" if pick.variant else ""
    if pick.name in {"glibc", "libstdcxx", "base-image"}:
        return None
    equals = "===" if pick.name == "torch" and "+" not in pick.version else "=="
    return parse_requirement(f"{pick.name}{variant}{equals}{pick.version}")


def _core_without(request: Request, refuted: Refuted, question: str) -> tuple[CoreItem, ...]:
    conflict, _ = explain_conflict(request, refuted)
    return tuple(item for item in conflict.core if item.kind == "fact" or item.about != (question,))


def working_version(
    search: Search, chosen: Resolution, requirement: Requirement
) -> tuple[str, tuple[str, ...]]:
    """Return the preferred version that one more requirement allows, and what else would change with it.

    The version is empty if there is no solution.
    """
    answer = search.with_requirements([requirement])
    if not isinstance(answer, Resolution):
        return "", ()
    others = [pick for pick in answer.picks if pick.name != requirement.name and not pick.alias_of]
    now = {pick.name: pick.key for pick in chosen.picks}
    changed = (f"{pick.name} {pick.key}" for pick in others if now.get(pick.name) != pick.key)
    return answer.version_of(requirement.name), tuple(changed)
