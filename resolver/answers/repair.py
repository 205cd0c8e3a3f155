"""Find the resolvable request that is nearest to an environment for CUDA or for another machine.

Distributions for CUDA are replaced as the catalog says (``[[replaces]]``), and the labels of builds for other
GPUs are removed. Then pins that conflict are relaxed, one after another and one step at a time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.answers.explain import blamed, explain_conflict
from resolver.answers.resolve import solve
from resolver.compiling.names import replacement
from resolver.errors import NoVersionError
from resolver.model import CoreItem, Resolution
from resolver.requirements import is_for_cuda, parse_requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Replaces
    from resolver.indexes import PackageIndexes
    from resolver.model import Conflict, Request, Requirement
    from resolver.solving.session import Refuted

_LEVELS = 3
"""A pin may be relaxed three times: to any patch release, any minor release, and any release."""
_LAST = ("torch", "python")
"""Of several pins that conflict, these are relaxed last: most other versions depend on them."""


class Wanted(msgspec.Struct, frozen=True):
    """A distribution of the environment to repair."""

    name: str
    """Normalized."""
    version: str = ""
    """The exact version with its local label; empty if any version will do."""
    versions: str = ""
    """The specifier, if it is not an exact version."""
    extras: tuple[str, ...] = ()
    marker: str = ""
    conda: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, [self.name, self.version or self.versions]))

    def requirement(self, level: int) -> Requirement:
        """Return the requirement at a level of relaxation, from 0 (as it is) to 3 (any version)."""
        name = f"{self.name}[{','.join(self.extras)}]" if self.extras else self.name
        public, _, _ = self.version.partition("+")
        numbers = public.split(".")[: _LEVELS - level]
        versions = ""
        if public and numbers:
            versions = f"=={'.'.join(numbers)}.*" if level else f"=={public}"
        elif level < _LEVELS:
            versions = self.versions
        return parse_requirement(name + versions + (f" ; {self.marker}" if self.marker else ""))


class Change(msgspec.Struct, frozen=True):
    """A change of one distribution, and the reason."""

    before: str
    after: str
    """Names or version; empty if nothing takes its place."""
    reason: str
    source: str = ""
    for_cuda: bool = False
    needed: bool = False
    """Whether the environment may need it, and nothing takes its place."""


def replaced(
    catalog: Catalog, wanted: Iterable[Wanted], drop: Collection[str] = ()
) -> tuple[list[Wanted], list[Change]]:
    """Return what stays or takes another's place, and the changes; conda keeps what the catalog leaves it."""
    kept: dict[str, Wanted] = {}
    changes: list[Change] = []
    for item in wanted:
        row = replacement(catalog, item.name, conda=item.conda)
        if item.name in drop:
            changes.append(Change(str(item), "", "you left it out"))
        elif row is not None:
            for name in row.by:
                _keep(kept, replace(item, name=name, conda=False))
            changes.append(
                Change(str(item), ", ".join(row.by), _reason(row), row.source, True, row.effect == "none")
            )
        elif is_for_cuda(item.name) and not item.conda:
            reason = "it is for CUDA, and the catalog has nothing that takes its place"
            changes.append(Change(str(item), "", reason, for_cuda=True, needed=True))
        elif not item.conda:
            _keep(kept, item)
    return list(kept.values()), changes


def _keep(kept: dict[str, Wanted], item: Wanted) -> None:
    """Add a distribution; of several lines about it, the one with a version counts."""
    if item.name not in kept or not kept[item.name].version:
        kept[item.name] = item


def _reason(row: Replaces) -> str:
    texts = {
        "rocm": "it is for CUDA",
        "cpu": "it is for CUDA, and its replacement runs on the CPU only",
        "drop": "it is for CUDA, and torch for AMD GPUs or CPUs does not need it",
        "none": "it is for CUDA, and the catalog has nothing that takes its place",
    }
    return f"{texts[row.effect]}. {row.note}".strip()


def nearest(
    catalog: Catalog, request: Request, wanted: Iterable[Wanted], indexes: PackageIndexes | None
) -> tuple[tuple[Requirement, ...], dict[str, CoreItem]] | Conflict:
    """Relax the pins that conflict, and return requirements that resolve, or the conflict that remains.

    The requirements of `request` are not relaxed, and `wanted` has none for CUDA (`replaced`). The second
    result has by name why each relaxed version cannot stay. Raise `UsageError` if one is not known.
    """
    # Of the catalog, the search prefers published wheels to builds; an exact version could mean a build.
    items = {item.name: item for item in wanted}
    keep = {name: item.version for name, item in items.items() if name not in catalog.package}
    levels = {name: _least(name) for name in items}  # how far the version of each is relaxed

    def pins() -> dict[str, Requirement]:
        return {name: item.requirement(levels[name]) for name, item in items.items()}

    def solved() -> tuple[Request, Resolution | Refuted]:
        asked = replace(request, requirements=(*request.requirements, *pins().values()))
        return asked, solve(catalog, asked, indexes, keep)

    conflicting: list[str] = []
    reasons: dict[str, CoreItem] = {}
    while True:
        pinned = {name for name, pin in pins().items() if pin.specifier is not None}
        try:
            asked, found = solved()
        except NoVersionError as error:
            if error.name not in pinned:
                raise
            name, reason = error.name, CoreItem(error.message.rstrip("."), "fact", "")
        else:
            if isinstance(found, Resolution):
                break
            conflict, core = explain_conflict(asked, found)
            relaxable = [name for name in items if name in blamed(core) & pinned]
            if not relaxable:
                return conflict
            name = min(relaxable, key=lambda name: (levels[name], name in _LAST))
            conflicting.append(name)
            reason = _fact_about(name, conflict.core)
        levels[name] += 1
        reasons.setdefault(name, reason)
    # A pin may have been relaxed only for the sake of another one that was relaxed later.
    for name in dict.fromkeys(conflicting):
        _tighten(name, levels, lambda: isinstance(solved()[1], Resolution))
    return tuple(pins().values()), reasons


def _least(name: str) -> int:
    """Return the level to begin with: conda pins a patch release of Python, which wheels do not depend on."""
    return int(name == "python")


def _tighten(name: str, levels: dict[str, int], resolves: Callable[[], bool]) -> None:
    """Relax a version no further than the relaxation of the others makes necessary."""
    for level in range(_least(name), relaxed := levels[name]):
        levels[name] = level
        with suppress(NoVersionError):
            if resolves():
                return
    levels[name] = relaxed


def _fact_about(name: str, core: Sequence[CoreItem]) -> CoreItem:
    facts = [item for item in core if item.kind == "fact"] or core
    return next((item for item in facts if name in item.text.split()), facts[0])


def changed_versions(
    answer: Resolution, wanted: Iterable[Wanted], reasons: Mapping[str, CoreItem]
) -> Iterator[Change]:
    """Yield the distributions that a resolution has in another version, or in a build for another target."""
    chosen = {pick.name: pick for pick in answer.picks}
    for item in wanted:
        pick = chosen.get(item.name)
        public, _, label = item.version.partition("+")
        if pick is None or not item.version or item.name == "python":
            continue
        if pick.version.partition("+")[0] != public and item.name in reasons:
            reason = reasons[item.name]
            yield Change(str(item), pick.pinned, reason.text, reason.source, for_cuda=label.startswith("cu"))
        elif label and label != pick.pinned.partition("+")[2]:
            for_cuda = label.startswith("cu")
            text = f"the label {label} means a build for {'CUDA' if for_cuda else 'another target'}"
            yield Change(str(item), pick.pinned, text, for_cuda=for_cuda)
