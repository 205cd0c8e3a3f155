"""The feasible matrix: for each base image, torch and Python the best version of each package.

Every cell answers its own request: its package with the torch, the Python and the image of its row. The cells
are not resolved one by one: the problem of all columns is compiled once, each column gets the subproblem that
concerns it, and a row narrows the arc consistent domains of each column: image, then torch, then Python. Base
images that no fact distinguishes share a row. A torch that works with no base image of the site gets rows
without an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.answers.proven import first_proven, is_at_risk, ranked_sets
from resolver.answers.resolution import pick_of
from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem, subproblem
from resolver.compiling.known_bad import AVOIDED
from resolver.compiling.problem import ABSENT, Demand, Problem, Relation, Variable, bits
from resolver.errors import TooLargeError, UsageError
from resolver.facts.schema import PLATFORM
from resolver.model import (
    UNLISTED,
    Conflict,
    Distribution,
    Request,
    Requirement,
    Verdict,
)
from resolver.solving.session import Narrowed, Session, Solution
from resolver.versions import minor

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend, ProvenSet

ROW_COMPONENTS = (*PLATFORM, "torch")
"""Components that limit rows; every other component is a column."""
COMBINATION = "combination"
"""The reason for a refusal if no single fact excludes each version."""
UNDECIDED = "undecided"
"""The reason for a refusal if the search reached its limit of steps, so that the cell has no answer."""

_TORCH_AND_PYTHON = (Requirement("torch", None, "torch"), Requirement("python", None, "python"))
_ANY_IMAGE = Requirement("base-image", None, "base-image")


class Cell(msgspec.Struct, frozen=True):
    """The pick of a column, or the reason why there is none."""

    pick: Distribution | None = None
    refused: str = ""
    """Names of the components whose facts exclude every version; see `COMBINATION`, `UNDECIDED`."""

    @property
    def version(self) -> str:
        """Version and variant; empty if refused."""
        return self.pick.key if self.pick else ""


class TableRow(msgspec.Struct, frozen=True):
    """A torch and a Python in base images that no fact distinguishes."""

    images: tuple[str, ...]
    """Empty if no base image works with this torch and Python."""
    rocm: str
    """Release in the image; without an image the line of the torch wheel; empty for the CPU backend."""
    torch: str
    python: str
    verdict: Verdict
    cells: Mapping[str, Cell]
    """By name of the column."""


class Table:
    """The feasible matrix of a target.

    Requirements of platform components and torch limit the rows, all others are the columns, by default every
    package that is available for the backend.
    """

    def __init__(self, catalog: Catalog, request: Request) -> None:
        self.catalog = catalog
        self.limits = tuple(
            requirement for requirement in request.requirements if requirement.name in ROW_COMPONENTS
        )
        requirements = [
            requirement for requirement in request.requirements if requirement.name not in ROW_COMPONENTS
        ]
        if not requirements:
            names = available_packages(catalog, request.target.backend)
            requirements = [Requirement(name, None, name) for name in names]
        if not requirements:
            msg = f"The catalog has no package for the backend {request.target.backend}."
            raise UsageError(msg)
        self.columns: dict[str, list[Requirement]] = {}
        """The packages, each with everything that the request requires of it."""
        for requirement in requirements:
            self.columns.setdefault(requirement.name, []).append(requirement)
        self._parts: dict[str, _TablePart] = {}
        self.request = replace(request, requirements=self.limits)
        everything = replace(request, requirements=(*_TORCH_AND_PYTHON, *self.limits, *requirements))
        self._problem = compile_problem(catalog, everything, apart=True)

    def rows(self, *, reasons: bool = True) -> Iterator[TableRow]:
        """Yield the rows as they are computed: the newest ROCm first, rows at your own risk last.

        To find the `reasons` of empty cells takes a quarter of the time.
        """
        placed: set[tuple[str, str]] = set()
        for images in self._images():
            for row in self._rows_of(images, placed, reasons=reasons):
                placed.add((row.torch, row.python))
                yield row

    def rows_or_conflict(self, *, reasons: bool = True) -> Iterator[TableRow] | Conflict:
        """Return the rows, or the conflict if there are none; see `rows`."""
        rows = self.rows(reasons=reasons)
        first = next(rows, None)
        if first is None and isinstance(answer := resolve(self.catalog, self._request_of_rows()), Conflict):
            return answer
        return chain([first] if first else [], rows)

    def refused_everywhere(self, column: str) -> str:
        """Return the reason why no row has a version of a column; empty if a row may have one."""
        part = self._part(column)
        return "" if part.versions(part.start, column) else part.reason({})

    @cached_property
    def driver(self) -> str:
        """The kernel driver of the target; empty if it is not known."""
        versions = self._part().versions(self._part().start, "kernel-driver")
        return versions[0] if len(versions) == 1 else ""

    def question(self, column: str = "") -> tuple[Session, list[Demand]]:
        """Return the problem of a column, or of the rows, with the demands that do not depend on the row."""
        part = self._part(column)
        return part.session, part.demands

    def _request_of_rows(self) -> Request:
        """Return the request that the whole table answers if it has no columns."""
        limited = {requirement.name for requirement in self.limits}
        pins = [requirement for requirement in _TORCH_AND_PYTHON if requirement.name not in limited]
        if self.request.target.base_image and self.request.target.backend == "rocm":
            pins.append(_ANY_IMAGE)
        return replace(self.request, requirements=(*pins, *self.limits))

    def _part(self, package: str = "") -> _TablePart:
        """Return the part of a column, or of the rows."""
        part = self._parts.get(package)
        if part is None:
            target, packages = self.request.target, [package] if package else []
            problem = subproblem(self._problem, self.catalog, target.backend, packages)
            sets: Sequence[ProvenSet] = ()
            requested = frozenset[str]()
            if self.request.prefer == "proven":
                limits = (requirement.name for requirement in self.limits)
                requested = frozenset({"torch", "python", *packages, *limits})
                sets = self.catalog.proven_at(target.site)
            part = self._parts[package] = _TablePart(problem, package, sets, requested)
        return part

    def _images(self) -> list[tuple[str, ...]]:
        """Return the groups of images that no fact distinguishes, followed by "no image"."""
        part = self._part()
        start = part.start
        variable = self._problem.variables["base-image"]
        if start is None or self.request.target.backend == "cpu":
            return [()]
        groups: dict[tuple[object, ...], list[int]] = {}
        number = part.session.number
        for bit in bits(start.domains[number["base-image"]]):
            narrowed = part.session.narrow_to(start, "base-image", 1 << bit)
            if bit and narrowed is not None:
                rocm = narrowed.domains[number["rocm"]]
                groups.setdefault((rocm & -rocm, *self._signature(variable, bit)), []).append(bit)
        ordered = sorted(groups.items(), key=lambda pair: (pair[0][0], pair[1]))
        images = [tuple(variable.candidate(bit).version for bit in group) for _, group in ordered]
        return images if self.request.target.base_image else [*images, ()]

    def _signature(self, image: Variable, bit: int) -> Iterator[object]:
        """Yield the constraints on an image; images with equal signatures are interchangeable."""
        for relation in self._problem.relations:
            if relation.subject is image:
                yield relation.table[bit]
            if relation.object is image:
                yield tuple(row.objects >> bit & 1 for row in relation.rows)
        if self.request.prefer == "proven":
            yield bit  # a proven set has only one image

    def _rows_of(
        self, images: tuple[str, ...], placed: set[tuple[str, str]], *, reasons: bool
    ) -> Iterator[TableRow]:
        """Yield the rows of a group of images; without images, only rows that are not placed yet."""
        of_rows, *of_columns = parts = [self._part(name) for name in ("", *self.columns)]
        variables = self._problem.variables
        image = variables["base-image"].of_versions(images[:1]) if images else ABSENT
        at_image = [part.session.narrow_to(part.start, "base-image", image) for part in parts]
        for torch in self._torches(at_image[0]):
            of_torch = variables["torch"].of_versions([torch])
            at_torch = _narrow_each(parts, at_image, "torch", of_torch)
            for python in of_rows.versions(at_torch[0], "python"):
                if not images and (torch, python) in placed:
                    continue
                of_python = variables["python"].of_versions([python])
                at_python = _narrow_each(parts, at_torch, "python", of_python)
                solution = of_rows.solve(at_python[0])
                if solution is None:
                    continue
                pins = {"base-image": image, "torch": of_torch, "python": of_python}
                cells = {
                    column: part.cell(domains, pins, reasons=reasons)
                    for column, part, domains in zip(self.columns, of_columns, at_python[1:], strict=True)
                }
                rocm = of_rows.problem.version(solution, "rocm")
                at_risk = is_at_risk(of_rows.problem, solution)
                verdict: Verdict = "at-own-risk" if at_risk else "supported"
                yield TableRow(
                    images, rocm if images or not rocm else minor(rocm), torch, python, verdict, cells
                )

    def _torches(self, narrowed: Narrowed | None) -> list[str]:
        """Return the torch versions that are left, versions for the preferred ROCm first."""
        part = self._part()

        def rank(version: str) -> int:
            mask = self._problem.variables["torch"].of_versions([version])
            at_torch = part.session.narrow_to(narrowed, "torch", mask)
            rocm = at_torch.domains[part.session.number["rocm"]] if at_torch else 0
            return rocm & -rocm

        return sorted(part.versions(narrowed, "torch"), key=rank)


def available_packages(catalog: Catalog, backend: Backend) -> list[str]:
    """Return the packages that are published or can be built for a backend, without torch."""

    def is_available(name: str) -> bool:
        return any(
            backend in release.backend and (release.is_published or catalog.recipe_for(release, backend))
            for release in catalog.releases_of(name)
        )

    return [name for name in sorted(catalog.package) if name not in ROW_COMPONENTS and is_available(name)]


def _narrow_each(
    parts: Sequence[_TablePart], each: Sequence[Narrowed | None], name: str, mask: int
) -> list[Narrowed | None]:
    return [part.session.narrow_to(domains, name, mask) for part, domains in zip(parts, each, strict=True)]


class _TablePart:
    """The subproblem of one column; without a package, the subproblem of the rows themselves."""

    def __init__(
        self,
        problem: Problem,
        package: str,
        proven_sets: Sequence[ProvenSet],
        requested: frozenset[str],
    ) -> None:
        self.problem = problem
        self.package = package
        self.session = Session(problem)
        self.demands = [demand for demand in problem.demands if self._counts(demand)]
        self.start = self.session.narrow(self.demands)
        self._proven_sets = proven_sets
        self._requested = requested
        self._path: list[tuple[tuple[str, int], Narrowed | None]] = []
        self._ranked_sets: dict[bool, list[tuple[ProvenSet, list[Demand]]]] = {}
        self._related: dict[str, list[tuple[Relation, int]]] = {name: [] for name in problem.variables}
        """For each component its relations, with the number of the other."""
        number = self.session.number
        for relation in problem.relations:
            self._related[relation.subject.name].append((relation, number[relation.object.name]))
            self._related[relation.object.name].append((relation, number[relation.subject.name]))
        self._reasons: dict[tuple[int, ...], str] = {}
        """By the domains of the components that the package has relations with."""

    def _counts(self, demand: Demand) -> bool:
        name = demand.variable.name
        is_own = name in {*ROW_COMPONENTS, self.package} or name.startswith(UNLISTED)
        return is_own or bool(demand.mask & ABSENT)

    def versions(self, narrowed: Narrowed | None, name: str) -> list[str]:
        """Return the versions of a component that are left, preferred first."""
        left = 0 if narrowed is None else narrowed.domains[self.session.number[name]]
        return list(dict.fromkeys(one.version for one in self.problem.variables[name].chosen(left)))

    def cell(self, narrowed: Narrowed | None, pins: Mapping[str, int], *, reasons: bool) -> Cell:
        try:
            solution = self.solve(narrowed)
            if solution is not None:
                return Cell(pick_of(self.problem, solution, self.package))
            return Cell(refused=self.reason(pins) if reasons else "")
        except TooLargeError:
            return Cell(refused=UNDECIDED)

    def solve(self, narrowed: Narrowed | None) -> Solution | None:
        """Find the solution that `resolver.answers.resolve.resolve` would return."""
        solution = self.session.solve_within(narrowed)
        if solution is None or not self._requested:
            return solution

        def solve_with(demands: Sequence[Demand] | None) -> Solution | None:
            left = narrowed
            for demand in demands or ():
                left = self.session.narrow_to(left, demand.variable.name, demand.mask)
            return self.session.solve_within(left)

        has_image = "base-image" in solution
        if has_image not in self._ranked_sets:
            requested = self._requested | ({"base-image"} if has_image else set())
            self._ranked_sets[has_image] = ranked_sets(self.problem, self._proven_sets, requested)
        return first_proven(self.problem, self._ranked_sets[has_image], solve_with)[0]

    def reason(self, pins: Mapping[str, int]) -> str:
        """Return as few components as exclude all versions, the one that excludes most first."""
        name = self.package
        variable = self.problem.variables[name]
        demands = [demand for demand in self.problem.demands if demand.variable.name == name]
        left = variable.present
        for demand in demands:
            if _is_requirement(demand):
                left &= demand.mask
        excluded: dict[str, int] = {}
        for demand in demands:
            if not _is_requirement(demand):
                excluded["known-bad"] = excluded.get("known-bad", 0) | left & ~demand.mask
        around = self._around(pins)
        if around is None:
            return COMBINATION
        related = self._related[name]
        key = tuple(around.domains[number] for _, number in related)
        # Most rows differ only in components that the package has no facts about.
        if key not in self._reasons:
            for relation, number in related:
                other, out = _excluded_by(relation, variable, left, around.domains[number])
                reason = "known-bad" if relation.forbids or other.startswith(AVOIDED) else other
                excluded[reason] = excluded.get(reason, 0) | out
            self._reasons[key] = _fewest(excluded, left)
        return self._reasons[key]

    @cached_property
    def _open(self) -> Narrowed | None:
        """The domains if the package may be absent."""
        demands = [
            demand
            for demand in self.demands
            if not (demand.variable.name == self.package and _is_requirement(demand))
        ]
        return self.session.narrow(demands)

    def _around(self, pins: Mapping[str, int]) -> Narrowed | None:
        """Return the domains that the row leaves for all other components if the package may be absent."""
        # Rows come in order, so this row shares most of its path with the previous row.
        path, domains = self._path, self._open
        for depth, pin in enumerate(pins.items()):
            if len(path) == depth or path[depth][0] != pin:
                path[depth:] = [(pin, self.session.narrow_to(domains, *pin))]
            domains = path[depth][1]
        return domains


def _excluded_by(relation: Relation, variable: Variable, left: int, around: int) -> tuple[str, int]:
    """Return the other component, and the candidates that fit none of its values in `around`."""
    if relation.subject is variable:
        return relation.object.name, sum(1 << bit for bit in bits(left) if not relation.table[bit] & around)
    if around & ABSENT:
        return relation.subject.name, 0
    allowed = 0
    for bit in bits(around):
        allowed |= relation.table[bit]
    return relation.subject.name, left & ~allowed


def _is_requirement(demand: Demand) -> bool:
    """Return whether a demand is of the request, and requires its component to be present."""
    return demand.kind == "request" and not demand.mask & ABSENT


def _fewest(excluded: Mapping[str, int], left: int) -> str:
    """Return names that together exclude all candidates, most first; of equals, other packages last."""
    names: list[str] = []
    common = {*ROW_COMPONENTS, "known-bad"}
    while left:
        best = max(
            excluded, key=lambda name: ((excluded[name] & left).bit_count(), name in common), default=""
        )
        if not best or not excluded[best] & left:
            return COMBINATION
        names.append(best)
        left &= ~excluded[best]
    return ", ".join(names) or COMBINATION
