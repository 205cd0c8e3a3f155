"""Find the resolvable request that is nearest to an environment for CUDA or for another machine.

Distributions for CUDA are replaced as the catalog says (``[[replaces]]``), and the labels of builds for other
GPUs are removed. Then pins that conflict are relaxed, one after another and one step at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.answers.explain import blamed, explain_conflict
from resolver.answers.resolve import Search
from resolver.compiling.known_bad import broken_combinations
from resolver.compiling.names import replacement
from resolver.errors import NoVersionError
from resolver.model import CoreItem, Requirement, Resolution
from resolver.requirements import is_for_cuda, parse_requirement
from resolver.versions import built_for, is_same_commit, is_version, minor, version_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from matrix.reading.items import Item
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Replaces
    from resolver.indexes import PackageIndexes
    from resolver.model import Conflict, Request
    from resolver.solving.session import Refuted

_LABEL, _ANY = 0, 4
"""The levels to which a pin is relaxed: with its label, its release, any patch, any minor, any release."""
_LAST = ("torch", "python")
"""Of several pins that conflict, these are relaxed last: most other versions depend on them."""
_CONDA_PIN = re.compile(r"={1,2}(\d[\w.!+]*?)(?:\.\*)?(?:=.*)?")
_PEP_440 = re.compile(r"(?:(?:[<>!]=?|~=|==)[\w.!+*]+,?)+")
_MOST_REFUSED = 8
"""How many versions of torch that the catalog warns of are passed over."""


def requirement_of(item: Item, level: int) -> Requirement:
    """Return the requirement of an item at a level of relaxation, from 0 (as it is) to 4 (any version)."""
    name = f"{item.name}[{','.join(item.extras)}]" if item.extras else item.name
    public, _, _ = item.version.partition("+")
    release = version_or_none(public)
    # A pre-release has no such series of its own: ==0.66b2.* is invalid.
    numbers = [*map(str, release.release)][: _ANY - level] if release else []
    epoch = f"{release.epoch}!" if release and release.epoch else ""
    versions = ""
    if item.version and level == _LABEL:
        versions = f"=={item.version}"
    elif public and level == 1:
        versions = f"=={public}"
    elif public and numbers:
        versions = f"=={epoch}{'.'.join(numbers)}.*"
    elif level < _ANY:
        versions = item.specifier
    return parse_requirement(name + versions + (f" ; {item.marker}" if item.marker else ""))


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

    @property
    def name(self) -> str:
        """The name of what is changed, as ``--drop`` takes it."""
        return self.before.partition(" ")[0]


def replaced(
    catalog: Catalog, wanted: Iterable[Item], drop: Collection[str] = (), backend: str = "rocm"
) -> tuple[list[Item], list[Change]]:
    """Return what stays or takes another's place, and the changes; conda keeps what the catalog leaves it.

    conda's builds run on CPUs, so there they stay, and what is for CUDA has no replacement for ROCm.
    """
    kept: dict[str, Item] = {}
    changes: list[Change] = []
    for item in wanted:
        by_conda = item.installer == "conda"
        row = replacement(catalog, item.name, conda=by_conda)
        row = None if "+rocm" in item.version or (by_conda and backend == "cpu") else row
        if item.name in drop:
            changes.append(Change(str(item), "", "you left it out"))
        elif row is not None:
            by = () if backend == "cpu" and row.effect == "rocm" else row.by
            reason = _reason(row) if by == row.by else "it is for CUDA"
            for name in by:
                _keep(kept, replace(_for_pip(item), name=name))
            changes.append(Change(str(item), ", ".join(by), reason, row.source, True, row.effect == "none"))
        elif not by_conda and (wrong := catalog.wrong_name.get(item.name)):
            meant = wrong.means[0] if len(wrong.means) == 1 else ""
            if meant:
                _keep(kept, replace(_for_pip(item), name=meant, version="", specifier=""))
            reason = f"the project {item.name} is {wrong.project}"
            changes.append(Change(str(item), meant, reason, wrong.source, needed=not meant))
        elif is_for_cuda(item.name) and not by_conda:
            reason = "it is for CUDA, and the catalog has nothing that takes its place"
            changes.append(Change(str(item), "", reason, for_cuda=True, needed=True))
        elif not by_conda:
            _keep(kept, item)
    return list(kept.values()), changes


def _for_pip(item: Item) -> Item:
    """Return an item with versions as pip writes them: ``=1.13.1`` of conda pins; builds are left out."""
    if item.installer != "conda" or item.version:
        return replace(item, installer="pip")
    pin = _CONDA_PIN.fullmatch(item.specifier)
    specifier = "" if pin or not _PEP_440.fullmatch(item.specifier) else item.specifier
    return replace(item, installer="pip", build="", version=pin[1] if pin else "", specifier=specifier)


def _keep(kept: dict[str, Item], item: Item) -> None:
    """Add a distribution; of several lines about it, the one with a version counts."""
    if item.name not in kept or not kept[item.name].version:
        kept[item.name] = item


def _reason(row: Replaces) -> str:
    texts = {
        "rocm": "conda's is not for ROCm" if row.conda else "it is for CUDA",
        "cpu": "it is for CUDA, and its replacement runs on the CPU only",
        "drop": "it is for CUDA, and torch for AMD GPUs or CPUs does not need it",
        "none": "it is for CUDA, and the catalog has nothing that takes its place",
    }
    return f"{texts[row.effect]}. {row.note}".strip()


class Nearest:
    """The nearest request that resolves: pins are relaxed one after another, one step at a time.

    The requirements of `request` are not relaxed, and `wanted` has none for CUDA (`replaced`). With `as_is`,
    somebody's build that no index has is unknown, and nothing is built in its place.
    """

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        wanted: Iterable[Item],
        indexes: PackageIndexes | None,
        *,
        as_is: bool = False,
    ) -> None:
        self.as_is = as_is
        self.catalog, self.request, self.indexes = catalog, request, indexes
        self.items = {item.name: item for item in wanted}
        # Of the catalog, the search prefers published wheels to builds; an exact version could mean a build.
        self.keep = {name: item.version for name, item in self.items.items() if name not in catalog.package}
        # How far the version of each is relaxed.
        self.least = {name: self._least(item) for name, item in self.items.items()}
        self.levels = {**self.least}
        self.reasons: dict[str, CoreItem] = {}
        """Why each relaxed version cannot stay, by name."""
        self.unknown: dict[str, NoVersionError] = {}
        """What no index has, or not in this version, by name; the former is not in the request.

        An index need not have everything that the user's own has, so neither is a fact against it.
        """
        self.refused: list[str] = []
        self.closer = ""

    def _least(self, item: Item) -> int:
        """Return the level to begin with.

        conda pins a patch release of Python, which wheels do not depend on. A label for CUDA is never kept;
        one that no index can have is no requirement, nor is ours on a project that the catalog lacks, which
        is built again from the same release.
        """
        if item.name == "python":
            return 2
        label = item.version.partition("+")[2]
        is_ours = is_version(item.version) and built_for(item.version) is not None
        is_drafted = is_ours and item.name not in self.catalog.package
        return int(not label or is_drafted or label.startswith(("cu", "pt")))

    def _pins(self) -> dict[str, Requirement]:
        pins = {name: requirement_of(item, self.levels[name]) for name, item in self.items.items()}
        return pins | ({"torch": parse_requirement(f"torch=={self.closer}.*")} if self.closer else {})

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The requirements that resolve."""
        refused = [parse_requirement(f"torch!={version}") for version in self.refused]
        return (*self._pins().values(), *refused)

    def _solved(self) -> tuple[Request, Resolution | Refuted]:
        asked = replace(self.request, requirements=(*self.request.requirements, *self.requirements))
        return asked, Search(self.catalog, asked, self.indexes, self.keep).answer

    def relax(self) -> Conflict | None:
        """Relax until the rest resolves; return the conflict if it never does."""
        conflicting: list[str] = []
        while True:
            try:
                asked, found = self._solved()
            except NoVersionError as error:
                self._without(error)
                continue
            if isinstance(found, Resolution):
                if self._refuses(found):
                    continue
                break
            conflict, core = explain_conflict(asked, found)
            pinned = self._pinned()
            relaxable = [name for name in self.items if name in blamed(core) & pinned]
            if not relaxable:
                return conflict
            # The name decides between equals, so that the order of the lines does not.
            name = min(relaxable, key=lambda name: (self.levels[name], name in _LAST, name))
            conflicting.append(name)
            self._relax(name, _fact_about(name, conflict.core))
        # A pin may have been relaxed only for the sake of another one that was relaxed later.
        for name in dict.fromkeys(conflicting):
            self._tighten(name)
        self._bring_torch_closer(found)
        return None

    def _bring_torch_closer(self, found: Resolution) -> None:
        """Take the first newer minor release of torch that resolves, if no patch release of its own does."""
        wanted = self.items.get("torch")
        if wanted is None or self.levels["torch"] < _ANY - 1 or not wanted.version:
            return
        have, want = (version_or_none(text) for text in (found.version_of("torch"), wanted.version))
        if have is None or want is None or have.major != want.major:
            return
        for number in range(want.minor + 1, have.minor):
            self.closer = f"{have.major}.{number}"
            with suppress(NoVersionError):
                answer = self._solved()[1]
                if isinstance(answer, Resolution) and not self._is_warned_of(answer):
                    return
        self.closer = ""

    def _refuses(self, found: Resolution) -> bool:
        """Pass over another torch than the wanted one if the catalog warns of it; return whether it did."""
        wanted, pick = self.items.get("torch"), found.pick("torch")
        if wanted is None or pick is None or len(self.refused) >= _MOST_REFUSED:
            return False
        if not wanted.version or pick.version.partition("+")[0] == wanted.version.partition("+")[0]:
            return False
        if not self._is_warned_of(found):
            return False
        self.refused.append(pick.version)
        return True

    def _is_warned_of(self, found: Resolution) -> bool:
        versions = {one.name: one.version for one in found.picks}
        return any(
            row.effect == "warn" and set(row.combination) == {"torch"}
            for row, _ in broken_combinations(self.catalog, self.request.target, versions)
        )

    def _pinned(self) -> set[str]:
        return {name for name, pin in self._pins().items() if pin.specifier is not None}

    def _without(self, error: NoVersionError) -> None:
        """Relax the version that does not exist, or leave out the distribution that no index has."""
        item = self.items.get(error.name)
        is_build = item is not None and self.levels[error.name] == _LABEL and item.name not in _LAST
        if self.as_is and is_build:
            self.unknown[error.name] = error
            del self.items[error.name]
        elif error.name in self._pinned():
            self.unknown.setdefault(error.name, error)
            self._relax(error.name, CoreItem(error.message.rstrip("."), "fact", ""))
        elif self.items.pop(error.name, None) is None:
            raise error
        else:
            self.unknown[error.name] = error

    def _relax(self, name: str, reason: CoreItem) -> None:
        self.levels[name] += 1
        self.reasons.setdefault(name, reason)

    def _tighten(self, name: str) -> None:
        """Relax a version no further than the relaxation of the others makes necessary."""
        for level in range(self.least[name], relaxed := self.levels[name]):
            self.levels[name] = level
            with suppress(NoVersionError):
                if isinstance(self._solved()[1], Resolution):
                    return
        self.levels[name] = relaxed


def _fact_about(name: str, core: Sequence[CoreItem]) -> CoreItem:
    facts = [item for item in core if item.kind == "fact"] or core
    return next((item for item in facts if name in item.about), facts[0])


def changed_versions(
    answer: Resolution, wanted: Iterable[Item], reasons: Mapping[str, CoreItem]
) -> Iterator[Change]:
    """Yield the distributions that a resolution has in another version, or in a build for another target."""
    chosen = {pick.name: pick for pick in answer.picks}
    for item in wanted:
        pick = chosen.get(item.name)
        public, _, label = item.version.partition("+")
        if pick is None or not item.version:
            continue
        reason = reasons.get(item.name)
        if item.name == "python":
            if minor(pick.version) != minor(item.version):
                text = "the wheels of the others need it"
                yield Change(str(item), pick.version, reason.text if reason else text)
        elif pick.version.partition("+")[0] != public and reason:
            yield Change(str(item), pick.pinned, reason.text, reason.source, for_cuda=label.startswith("cu"))
        elif pick.variant and is_same_commit(label, pick.variant):
            continue
        elif label and label != pick.pinned.partition("+")[2]:
            for_cuda = label.startswith("cu")
            text = f"the label {label} means a build for CUDA" if for_cuda else ""
            text = text or (reason.text if reason else f"no index has the build {label}")
            yield Change(str(item), pick.pinned, text, for_cuda=for_cuda)
