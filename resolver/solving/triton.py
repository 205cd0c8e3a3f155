"""The triton of torch, which has several names.

torch for ROCm requires its own build of triton, as ``pytorch-triton-rocm``, ``triton-rocm`` or ``triton``.
All of them install the same files, so only one of them may be chosen: that of the chosen torch. A
requirement on any of the names means that triton. PyPI has no triton for ROCm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.problem import ABSENT, Link, is_prerelease
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.facts.schema import FOLDER
from resolver.indexes import uploaded_by
from resolver.model import Candidate, Fact
from resolver.requirements import TRITON_NAMES, exact_requirement, parse_requirement, split_marker
from resolver.versions import allows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.compiling.problem import Problem
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Requires, Torch
    from resolver.indexes import PackageIndexes
    from resolver.model import Request, Requirement
    from resolver.solving.states import Terms
    from resolver.solving.targets import Targets


def is_exact(row: Torch) -> bool:
    """Return whether the catalog has the exact triton of a torch, for all its Pythons."""
    head, marker = split_marker(row.triton)
    return not marker and exact_requirement(head) is not None


class TritonProvider:
    """The tritons on the index of torch whose exact version the catalog does not have.

    They are looked up for torch wheels of the user's catalogs, and if no torch left has an exact triton.
    """

    def __init__(self, catalog: Catalog, request: Request, indexes: PackageIndexes) -> None:
        self._request = request
        self._indexes = indexes
        torches = [one.specifier for one in request.requirements if one.name == "torch" and one.specifier]
        rows = [
            row
            for row in catalog.torch.values()
            if row.backend == request.target.backend == "rocm" and allows(torches, row.version)
        ]
        without = [row for row in rows if row.index and not exact_requirement(split_marker(row.triton)[0])]
        own = [row for row in without if not row.from_file.startswith(FOLDER)]
        self._rows = without if len(without) == len(rows) else own
        self._found: dict[str, list[Candidate]] = {}

    def candidates(self, name: str) -> Sequence[Candidate]:
        """Return the tritons of a name."""
        if name not in TRITON_NAMES:
            return []
        if name not in self._found:
            self._found[name] = list(self._candidates(name))
        return self._found[name]

    def requirements(self, candidate: Candidate) -> Sequence[Requires]:  # noqa: ARG002  part of the protocol
        """Return nothing: torch requires triton, not the other way round."""
        return ()

    def _candidates(self, name: str) -> Iterator[Candidate]:
        for row in self._rows:
            if row.triton and parse_requirement(split_marker(row.triton)[0]).name != name:
                continue
            try:
                project = self._indexes.at(row.index).project(name)
            except (EnvironmentLacksError, SourceError):
                if row.index in self._indexes.urls:
                    raise
                continue  # reported when torch is chosen and its triton is missing
            for release in project.releases if project else ():
                if not is_prerelease(release.version) and uploaded_by(
                    release.files, self._request.target.date
                ):
                    text = f"{name} {release.version} is published at {row.index}, the index of torch"
                    fact = Fact(text, "documented", f"{row.index}/{name}/")
                    yield Candidate(name, release.version, "distribution", "published", fact, index=row.index)


class Triton:
    """The constraints on triton, as incompatibilities of a search."""

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        problem: Problem,
        number: Mapping[str, int],
        targets: Targets,
    ) -> None:
        self._catalog = catalog
        self._request = request
        self._problem = problem
        self._number = number
        self._targets = targets
        self._installed = request.preinstalled.installed if request.preinstalled else {}
        # the distributions of the problem that install ``triton``
        self.names = [name for name in TRITON_NAMES if name in problem.variables]

    def is_of_torch(self, name: str) -> bool:
        """Return whether a name means the triton of torch."""
        is_rocm = self._request.target.backend == "rocm"
        return name in TRITON_NAMES and is_rocm and name not in self._installed

    def limits_to_torch(self) -> Iterator[tuple[Terms, Link]]:
        """Yield, for each torch of the catalog, the exclusion of every triton except its own."""
        if self._installed.keys() & {*TRITON_NAMES}:
            return
        for name in self.names:
            variable = self._problem.variables[name]
            for bit, candidate in enumerate(self._problem.variables["torch"].candidates, start=1):
                row = self._catalog.torch.get(candidate.version)
                if not row or not row.triton or candidate.origin == "preinstalled":
                    continue
                head, marker = split_marker(row.triton)
                own = parse_requirement(head)
                if own.name == name and is_exact(row):
                    continue  # the problem has a relation for it
                allowed = variable.allowed_by(str(own.specifier or "")) if own.name == name else 0
                link = Link("torch", name, row.version, f"requires {row.triton}", row.source)
                torch = {self._number["torch"]: 1 << bit}
                yield {**torch, self._number[name]: variable.present & ~allowed}, link
                without = self._targets.allowed & ~self._targets.applying(marker)
                if allowed and without:
                    pythons = {self._number["python"]: without}
                    yield {**torch, **pythons, self._number[name]: variable.present}, link

    def required(
        self, requirement: Requirement, limits: Sequence[Requirement], link: Link
    ) -> Iterator[tuple[Terms, Link]]:
        """Yield what a requirement, with the `limits` on its name, means: a torch with an allowed triton."""
        excluded_of: Terms = {}
        for name in self.names:
            triton = self._problem.variables[name]
            excluded = ABSENT
            for limit in (requirement, *limits):
                allowed = triton.allowed_by(str(limit.specifier)) if limit.specifier else triton.present
                excluded |= triton.everything & ~allowed
            excluded_of[self._number[name]] = excluded
        link = replace(link, object=next(iter(self.names), ""))
        # Two statements: a torch with a triton is required, and one of the names must have an allowed
        # version.
        yield {self._number["torch"]: self._without_triton}, link
        yield excluded_of, link

    @cached_property
    def _without_triton(self) -> int:
        """The mask of absence and of the torch versions that are not known to require triton."""
        mask = ABSENT
        for bit, candidate in enumerate(self._problem.variables["torch"].candidates, start=1):
            row = self._catalog.torch.get(candidate.version)
            if candidate.origin != "preinstalled" and not (row and row.triton):
                mask |= 1 << bit
        return mask
