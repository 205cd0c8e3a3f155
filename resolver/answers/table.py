"""The feasible matrix: for each base image, torch and Python the best version of each package.

Every cell answers its own request: its package with the torch, the Python and the image of its row. The cells
are not resolved one by one: the problem of all columns is compiled once, each column gets the subproblem that
concerns it, and it is solved once for all rows that its facts do not distinguish. Base images that no fact
distinguishes share a row. A torch that works with no base image of the site gets rows without an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
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


class _Answer(msgspec.Struct):
    """What a column has in all rows that its facts do not distinguish."""

    row: Narrowed
    """The first of these rows."""
    solution: Solution | None = None
    """That of the first row."""
    version: str = ""
    refused: str = ""
    """Empty until it is read."""


class Cell(msgspec.Struct, frozen=True, eq=False):
    """The pick of a column, or the reason why there is none; both are found when they are read."""

    part: _TablePart
    answer: _Answer
    row: Narrowed
    """What the row leaves of the components that limit rows, and of all that these require."""

    @property
    def version(self) -> str:
        """Version and variant; empty if refused."""
        return self.answer.version

    @property
    def pick(self) -> Distribution | None:
        """The pick, with the facts that allow it; None if refused."""
        return self.part.pick(self.answer, self.row) if self.answer.solution else None

    @property
    def refused(self) -> str:
        """Names of the components whose facts exclude every version; see `COMBINATION`, `UNDECIDED`."""
        if not (self.version or self.answer.refused):
            self.answer.refused = self.part.reason(self.answer.row)
        return self.answer.refused


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

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows as they are computed: the newest ROCm first, rows at your own risk last."""
        placed: set[tuple[str, str]] = set()
        for images in self._images():
            for row in self._rows_of(images, placed):
                placed.add((row.torch, row.python))
                yield row

    def rows_or_conflict(self) -> Iterator[TableRow] | Conflict:
        """Return the rows, or the conflict if there are none; see `rows`."""
        rows = self.rows()
        first = next(rows, None)
        if first is None and isinstance(answer := resolve(self.catalog, self._request_of_rows()), Conflict):
            return answer
        return chain([first] if first else [], rows)

    def refused_everywhere(self, column: str) -> str:
        """Return the reason why no row has a version of a column; empty if a row may have one."""
        part = self._part(column)
        return "" if part.versions(part.start, column) else part.reason(None)

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
            of_rows = self._part() if package else None
            part = self._parts[package] = _TablePart(problem, package, sets, requested, of_rows)
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
            narrowed = part.session.narrow_to(start, ("base-image", 1 << bit))
            if bit and narrowed is not None:
                rocm = narrowed.domains[number["rocm"]]
                # A proven set has only one image.
                own = bit if self.request.prefer == "proven" else 0
                signature = _signature(self._problem.relations, variable, bit)
                groups.setdefault((rocm & -rocm, own, *signature), []).append(bit)
        ordered = sorted(groups.items(), key=lambda pair: (pair[0][0], pair[1]))
        images = [tuple(variable.candidate(bit).version for bit in group) for _, group in ordered]
        return images if self.request.target.base_image else [*images, ()]

    def _rows_of(self, images: tuple[str, ...], placed: set[tuple[str, str]]) -> Iterator[TableRow]:
        """Yield the rows of a group of images; without images, only rows that are not placed yet."""
        of_rows, parts = self._part(), {name: self._part(name) for name in self.columns}
        variables, narrow_to = self._problem.variables, of_rows.session.narrow_to
        image = variables["base-image"].of_versions(images[:1]) if images else ABSENT
        at_image = narrow_to(of_rows.start, ("base-image", image))
        for torch, at_torch in self._torches(at_image):
            for python in of_rows.versions(at_torch, "python"):
                if not images and (torch, python) in placed:
                    continue
                row = narrow_to(at_torch, ("python", variables["python"].of_versions([python])))
                solution = of_rows.solve(row)
                if row is None or solution is None:
                    continue
                cells = {name: Cell(part, part.answer(row), row) for name, part in parts.items()}
                rocm = of_rows.problem.version(solution, "rocm")
                at_risk = is_at_risk(of_rows.problem, solution)
                verdict: Verdict = "at-own-risk" if at_risk else "supported"
                rocm = rocm if images or not rocm else minor(rocm)
                yield TableRow(images, rocm, torch, python, verdict, cells)

    def _torches(self, narrowed: Narrowed | None) -> list[tuple[str, Narrowed]]:
        """Return the torch versions that are left and what they leave, those for the preferred ROCm first."""
        part, variable = self._part(), self._problem.variables["torch"]
        masks = {torch: variable.of_versions([torch]) for torch in part.versions(narrowed, "torch")}
        each = [(torch, part.session.narrow_to(narrowed, ("torch", mask))) for torch, mask in masks.items()]
        rocm = part.session.number["rocm"]
        left = [(torch, at_torch) for torch, at_torch in each if at_torch is not None]
        return sorted(left, key=lambda pair: pair[1].domains[rocm] & -pair[1].domains[rocm])


def available_packages(catalog: Catalog, backend: Backend) -> list[str]:
    """Return the packages that are published or can be built for a backend, without torch."""

    def is_available(name: str) -> bool:
        return any(
            backend in release.backend and (release.is_published or catalog.recipe_for(release, backend))
            for release in catalog.releases_of(name)
        )

    return [name for name in sorted(catalog.package) if name not in ROW_COMPONENTS and is_available(name)]


def _signature(relations: Iterable[Relation], variable: Variable, bit: int) -> Iterator[object]:
    """Yield what relations allow a value of a variable; values with equal signatures are interchangeable."""
    for relation in relations:
        if relation.subject is variable:
            yield relation.table[bit]
        if relation.object is variable:
            yield tuple(row.objects >> bit & 1 for row in relation.rows)


class _TablePart:
    """The subproblem of one column; without a package, the subproblem of the rows themselves."""

    def __init__(
        self,
        problem: Problem,
        package: str,
        proven_sets: Sequence[ProvenSet],
        requested: frozenset[str],
        rows: _TablePart | None,
    ) -> None:
        self.problem = problem
        self.package = package
        self.session = Session(problem)
        self.demands = [demand for demand in problem.demands if self._counts(demand)]
        self.start = self.session.narrow(self.demands)
        self._proven_sets = proven_sets
        self._requested = requested
        self._ranked_sets: dict[bool, list[tuple[ProvenSet, list[Demand]]]] = {}
        self._rows = rows or self
        self._own = [one for one in problem.relations if one not in self._rows.problem.relations]
        """The relations that the rows do not have."""
        self._answers: dict[object, _Answer] = {}
        self._relevant = cache(self._find_relevant)
        self._meaning = cache(self._number_meaning)
        self._signatures: dict[tuple[object, ...], int] = {}

    def _counts(self, demand: Demand) -> bool:
        name = demand.variable.name
        is_own = name in {*ROW_COMPONENTS, self.package} or name.startswith(UNLISTED)
        return is_own or bool(demand.mask & ABSENT)

    def versions(self, narrowed: Narrowed | None, name: str) -> list[str]:
        """Return the versions of a component that are left, preferred first."""
        left = 0 if narrowed is None else narrowed.domains[self.session.number[name]]
        return list(dict.fromkeys(one.version for one in self.problem.variables[name].chosen(left)))

    def answer(self, row: Narrowed) -> _Answer:
        """Return what the column has in a row.

        A component of the row with one value is consistent with everything that the row leaves of the others.
        So only what the relations of this column say about it counts, and rows with values of which they say
        the same share the answer.
        """
        key: object = row.domains
        # A proven set may name any component, and torch may require the package.
        if not (self._requested or self.package in self._rows.problem.variables):
            numbers = self._relevant(row.several)
            key = numbers, *[self._meaning(number, row.domains[number]) for number in numbers]
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer(row)
            try:
                answer.solution = self.solve(self._at(row, self.start))
            except TooLargeError:
                answer.refused = UNDECIDED
            if answer.solution is not None:
                variable = self.problem.variables[self.package]
                answer.version = variable.candidate(answer.solution[self.package]).key
        return answer

    def _find_relevant(self, several: frozenset[int]) -> tuple[int, ...]:
        """Return the components of rows that count for the column, given those with several values.

        Its own relations are about these components, or a choice between several values depends on them.
        """
        number = self._rows.session.number
        names = {end.name for one in self._own for end in (one.subject, one.object)}
        found = {number[name] for name in names & number.keys()}
        relations = self._rows.problem.relations
        pairs = [{number[one.subject.name], number[one.object.name]} & several for one in relations]
        while more := {other for pair in pairs if pair & found for other in pair} - found:
            found |= more
        return tuple(found)

    def _number_meaning(self, number: int, mask: int) -> int:
        """Return the number that values of a component of rows share if `_own` says the same of them.

        Several values, and absence, have their mask.
        """
        if mask & (mask - 1) or mask == ABSENT:
            return mask
        variable = self.problem.variables[self._rows.session.names[number]]
        signature = tuple(_signature(self._own, variable, mask.bit_length() - 1))
        return -1 - self._signatures.setdefault(signature, len(self._signatures))

    def pick(self, answer: _Answer, row: Narrowed) -> Distribution:
        """Return the pick of an answer, with the facts that allow it in a row."""
        names = self._rows.session.names
        single = {number: row.domains[number].bit_length() - 1 for number in names.keys() - row.several}
        solution = (answer.solution or {}) | {names[number]: bit for number, bit in single.items()}
        return pick_of(self.problem, {name: bit for name, bit in solution.items() if bit}, self.package)

    def _at(self, row: Narrowed | None, narrowed: Narrowed | None) -> Narrowed | None:
        """Return what a row leaves of the domains of this part."""
        number = self._rows.session.number
        pins = ("base-image", "torch", "python")
        limits = [(name, row.domains[number[name]]) for name in pins] if row else []
        return self.session.narrow_to(narrowed, *limits)

    def solve(self, narrowed: Narrowed | None) -> Solution | None:
        """Find the solution that `resolver.answers.resolve.resolve` would return."""
        solution = self.session.solve_within(narrowed)
        if solution is None or not self._requested:
            return solution

        def solve_with(demands: Sequence[Demand] | None) -> Solution | None:
            limits = [(demand.variable.name, demand.mask) for demand in demands or ()]
            return self.session.solve_within(self.session.narrow_to(narrowed, *limits))

        has_image = "base-image" in solution
        if has_image not in self._ranked_sets:
            requested = self._requested | ({"base-image"} if has_image else set())
            self._ranked_sets[has_image] = ranked_sets(self.problem, self._proven_sets, requested)
        return first_proven(self.problem, self._ranked_sets[has_image], solve_with)[0]

    def reason(self, row: Narrowed | None) -> str:
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
        around = self._at(row, self._open)
        if around is None:
            return COMBINATION
        for relation in self.problem.relations:
            if variable in {relation.subject, relation.object}:
                other = (relation.object if relation.subject is variable else relation.subject).name
                out = _excluded_by(relation, variable, left, around.domains[self.session.number[other]])
                reason = "known-bad" if relation.forbids or other.startswith(AVOIDED) else other
                excluded[reason] = excluded.get(reason, 0) | out
        return _fewest(excluded, left)

    @cached_property
    def _open(self) -> Narrowed | None:
        """The domains if the package may be absent."""
        demands = [
            demand
            for demand in self.demands
            if not (demand.variable.name == self.package and _is_requirement(demand))
        ]
        return self.session.narrow(demands)


def _excluded_by(relation: Relation, variable: Variable, left: int, around: int) -> int:
    """Return the candidates that fit none of the values of the other component in `around`."""
    if relation.subject is variable:
        return sum(1 << bit for bit in bits(left) if not relation.table[bit] & around)
    allowed = 0
    for bit in bits(around):
        allowed |= relation.table[bit]
    return left & ~allowed


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
