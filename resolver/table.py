"""The feasible matrix: for each base image, torch and Python the best version of each extension.

Every cell is the answer to a request of its own (`request_of_cell`). They are not resolved one by
one: the problem of all columns is compiled once, each column gets the part of it that concerns it, and
a row narrows the arc consistent domains of each column, image before torch before Python.

Base images that no fact can tell apart share a row. A torch that runs, but with no base image that the
site offers, has rows without an image: what is published can still be installed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling import compile_problem
from resolver.compiling.bad import WAY_OUT
from resolver.compiling.part import part_for
from resolver.errors import UsageError
from resolver.explain import core_of
from resolver.facts.selecting import recipe_for
from resolver.model import PLATFORM, STATUS_RANK, Fact, Pick, Requirement
from resolver.network import Network, TooLargeError
from resolver.problem import ABSENT, Demand, bits
from resolver.proven import first_proven, in_order, is_at_risk
from resolver.resolve import pick_of
from resolver.solve import preferred_within
from resolver.versions import minor, parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend, ProvenSet
    from resolver.model import Candidate, CoreItem, Request, Verdict
    from resolver.network import Domains
    from resolver.problem import Problem, Relation, Variable

ROW = (*PLATFORM, "torch")
"""Components that limit rows; every other one is a column."""
COMBINATION = "combination"
"""The reason of a refusal where no single fact rules each version out."""
UNDECIDED = "undecided"
"""The guard on the search stopped it: not refused, but not answered either."""
_NEEDED = (Requirement("torch", None, "torch"), Requirement("python", None, "python"))
_IMAGE = Requirement("base-image", None, "base-image")


@dataclass(frozen=True, slots=True)
class Column:
    """A package of the table, or several that are resolved together."""

    name: str
    requirements: tuple[Requirement, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages, each once."""
        return tuple(dict.fromkeys(one.name for one in self.requirements))


@dataclass(frozen=True, slots=True)
class Cell:
    """What a column has for a row: a pick for each of its packages, or why none."""

    picks: tuple[Pick, ...] = ()
    refused: str = ""
    """Names of the components whose facts rule every version out; see `COMBINATION`, `UNDECIDED`."""

    @property
    def version(self) -> str:
        """Version and variant of each pick; empty when refused."""
        return " + ".join(pick.candidate.key for pick in self.picks)

    @property
    def weakest(self) -> tuple[Pick, Fact]:
        """The fact that decides how far the cell can be trusted, with its pick."""
        pick = min(self.picks, key=lambda one: STATUS_RANK[one.support])
        return pick, next((one for one in pick.facts if one.status == pick.support), pick.candidate.fact)


@dataclass(frozen=True, slots=True)
class Row:
    """One torch and one Python in base images that no fact tells apart."""

    images: tuple[str, ...]
    """None where no base image goes with this torch and Python."""
    rocm: str
    """Release in the image; the line of the torch wheel where there is none; empty for a CPU."""
    torch: str
    python: str
    verdict: Verdict | None
    """None when the row itself is refused."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By name of the column; empty when the row itself is refused."""
    refused: str = ""
    """Why, as in `Cell`."""


class Table:
    """The feasible matrix of a target.

    Parameters
    ----------
    catalog
        The facts.
    request
        The target, and requirements: those of platform components and torch limit the rows, the
        others are the columns. Without any of those, every package that can be had for the backend
        is a column.
    together
        Add a column in which all others are resolved together.

    Raises
    ------
    UsageError
        The request names something that the catalog does not know, or nothing is left for a column.

    Attributes
    ----------
    columns
        In the order in which they were asked for, or by name.
    limits
        The requirements that limit the rows.
    """

    def __init__(self, catalog: Catalog, request: Request, *, together: bool = False) -> None:
        self.catalog = catalog
        self.limits = tuple(one for one in request.requirements if one.name in ROW)
        wanted = [one for one in request.requirements if one.name not in ROW]
        if not wanted:
            wanted = [Requirement(name, None, name) for name in offered(catalog, request.target.backend)]
        if not wanted:
            msg = f"The catalog has no package for the backend {request.target.backend}."
            raise UsageError(msg)
        names = dict.fromkeys(one.name for one in wanted)
        self.columns = [Column(name, tuple(one for one in wanted if one.name == name)) for name in names]
        if together and len(self.columns) > 1:
            self.columns.append(Column("+".join(names), tuple(wanted)))
        self.request = replace(request, requirements=self.limits)
        asked = replace(request, requirements=(*_NEEDED, *self.limits, *wanted))
        self._problem = compile_problem(catalog, asked)

    def rows(self, *, refused_too: bool = False) -> Iterator[Row]:
        """Yield the rows as they are found: the newest ROCm first, what is at own risk last.

        Parameters
        ----------
        refused_too
            Add at the end a row for every torch and Python that has none, with the reason.

        Yields
        ------
        Row
            Rows of one image stand together, the preferred torch first.
        """
        placed: set[tuple[str, str]] = set()
        for images in self._images():
            for row in self._rows_of(images, placed):
                if images:
                    placed.add((row.torch, row.python))
                yield row
                if not images:
                    placed.add((row.torch, row.python))
        if refused_too:
            yield from self._refused_rows(placed)

    def possible(self, column: Column) -> list[list[str]]:
        """Give for each package of a column the versions that some row may have, before any is known."""
        part = self._parts[self.columns.index(column)]
        return [[one.key for one in part.left(name)] for name in column.packages]

    def nowhere(self, column: Column) -> str:
        """Say why no row has a version of a column; empty when some row may have one."""
        if all(self.possible(column)):
            return ""
        return self._parts[self.columns.index(column)].why_refused({})

    def torch_versions(self) -> list[str]:
        """Give every torch that the request allows, whether or not it runs."""
        return self._base.asked_versions("torch")

    @cached_property
    def driver(self) -> str:
        """The kernel driver of the target; empty where none is known."""
        start = self._base.start
        versions = self._base.versions(start, "kernel-driver")
        return versions[0] if len(versions) == 1 else ""

    def core(self, row: Row, column: Column | None) -> list[CoreItem]:
        """Say in full why a cell is refused, or the row itself: as `matrix resolve` would.

        Takes some hundred times as long as the cell.
        """
        if column is not None and row.cells[column.name].refused == UNDECIDED:
            return []
        request = self.of_rows(row) if column is None else self.of_cell(row, column)
        return core_of(compile_problem(self.catalog, request))

    def of_rows(self, row: Row | None = None) -> Request:
        """Give the request that a row without any column answers, or all rows."""
        pinned = [_exactly("torch", row.torch), _exactly("python", row.python)] if row else []
        limited = {one.name for one in (*pinned, *self.limits)}
        pinned += [one for one in _NEEDED if one.name not in limited]
        if self.request.target.base_image and self.request.target.backend == "rocm":
            pinned.append(_IMAGE)
        return replace(self.request, requirements=(*pinned, *self.limits))

    def of_cell(self, row: Row, column: Column, image: str = "") -> Request:
        """Give the request that a cell answers; for a row of several images the first of them."""
        return request_of_cell(self.request, row, column, image)

    @cached_property
    def _base(self) -> _Part:
        return self._part(())

    @cached_property
    def _parts(self) -> list[_Part]:
        return [self._part(column.packages) for column in self.columns]

    def _part(self, packages: tuple[str, ...]) -> _Part:
        backend = self.request.target.backend
        problem = part_for(self._problem, self.catalog, backend, packages)
        return _Part(problem, packages, self._proven(packages))

    def _proven(self, packages: tuple[str, ...]) -> _Proven | None:
        if self.request.prefer != "proven":
            return None
        sets = [row for row in self.catalog.proven.values() if row.site in {"", self.request.target.site}]
        return _Proven(sets, frozenset({"torch", "python", *packages, *(one.name for one in self.limits)}))

    def _images(self) -> list[tuple[str, ...]]:
        """Give the groups of images that no fact tells apart, and behind them none at all."""
        start = self._base.start
        variable = self._problem.variables["base-image"]
        if start is None or self.request.target.backend == "cpu":
            return [()]
        groups: dict[tuple[object, ...], list[int]] = {}
        number = self._base.network.number
        for bit in bits(start[number["base-image"]]):
            narrowed = self._base.narrowed(start, "base-image", 1 << bit)
            if bit and narrowed is not None:
                rank = narrowed[number["rocm"]]
                groups.setdefault((rank & -rank, *self._signature(variable, bit)), []).append(bit)
        in_order = sorted(groups.items(), key=lambda one: (one[0][0], one[1]))
        named = [tuple(variable.candidate(bit).version for bit in group) for _, group in in_order]
        return named if self.request.target.base_image else [*named, ()]

    def _signature(self, image: Variable, bit: int) -> Iterator[object]:
        """Give all that the problem says of an image; of two with the same, any answer is the same."""
        for relation in self._problem.relations:
            if relation.subject is image:
                yield relation.table[bit]
            if relation.object is image:
                yield tuple(row.objects >> bit & 1 for row in relation.rows)
        if self.request.prefer == "proven":
            yield bit  # a proven set names one image

    def _rows_of(self, images: tuple[str, ...], placed: set[tuple[str, str]]) -> Iterator[Row]:
        """Yield the rows of a group of images; without images those that are not placed yet."""
        parts = [self._base, *self._parts]
        image = self._problem.variables["base-image"].of_versions(images[:1]) if images else ABSENT
        at_image = [part.narrowed(part.start, "base-image", image) for part in parts]
        for torch in self._torches(at_image[0]):
            of_torch = self._problem.variables["torch"].of_versions([torch])
            at_torch = _each(parts, at_image, "torch", of_torch)
            for python in self._base.versions(at_torch[0], "python"):
                if not images and (torch, python) in placed:
                    continue
                of_python = self._problem.variables["python"].of_versions([python])
                at_python = _each(parts, at_torch, "python", of_python)
                solution = self._base.solve(at_python[0])
                if solution is None:
                    continue
                pins = {"base-image": image, "torch": of_torch, "python": of_python}
                cells = {
                    column.name: part.cell(domains, pins)
                    for column, part, domains in zip(self.columns, self._parts, at_python[1:], strict=True)
                }
                rocm = self._base.version_of(solution, "rocm")
                verdict: Verdict = "at-own-risk" if is_at_risk(self._base.problem, solution) else "supported"
                yield Row(images, rocm if images or not rocm else minor(rocm), torch, python, verdict, cells)

    def _torches(self, domains: Domains | None) -> list[str]:
        """Give the torch versions that are left, those of the preferred ROCm first."""

        def rank(version: str) -> int:
            mask = self._problem.variables["torch"].of_versions([version])
            narrowed = self._base.narrowed(domains, "torch", mask)
            left = narrowed[self._base.network.number["rocm"]] if narrowed else 0
            return left & -left

        return sorted(self._base.versions(domains, "torch"), key=rank)

    def _refused_rows(self, placed: set[tuple[str, str]]) -> Iterator[Row]:
        """Yield what was asked for and runs nowhere, with the reason."""
        variables, named = self._problem.variables, self.request.target.base_image
        image = {"base-image": variables["base-image"].of_versions([named])} if named else {}
        for torch in self._base.asked_versions("torch"):
            for python in self._base.asked_versions("python"):
                if (torch, python) not in placed:
                    pins = image | {"python": variables["python"].of_versions([python])}
                    reason = self._base.reason("torch", pins, variables["torch"].of_versions([torch]))
                    yield Row((), "", torch, python, None, refused=reason)


def offered(catalog: Catalog, backend: Backend) -> list[str]:
    """Give the packages that are published or can be built for a backend; torch is none of them."""

    def can_be_had(name: str) -> bool:
        return any(
            backend in one.backend and (one.wheel or one.pypi or recipe_for(catalog, one, backend))
            for one in catalog.releases_of(name)
        )

    return [name for name in sorted(catalog.package) if name not in ROW and can_be_had(name)]


def request_of_cell(request: Request, row: Row, column: Column, image: str = "") -> Request:
    """Give the request that a cell answers.

    Parameters
    ----------
    request
        The target and what limits the rows.
    row, column
        The cell.
    image
        One of the row's images, if not the first.
    """
    pinned = [_exactly("torch", row.torch), _exactly("python", row.python)]
    target = request.target
    if row.images:
        pinned.append(_IMAGE)
        target = replace(target, base_image=image or row.images[0])
    return replace(
        request, target=target, requirements=(*column.requirements, *pinned, *request.requirements)
    )


def _exactly(name: str, version: str) -> Requirement:
    """Pin a version; one without a local label, so that those with one are not meant."""
    text = f"=={version}" if name != "torch" or "+" in version else f"==={version}"
    return Requirement(name, parse_specifier(text), f"{name}{text}")


@dataclass(frozen=True)
class _Proven:
    """Sets that somebody ran, to be preferred."""

    sets: Sequence[ProvenSet]
    asked: frozenset[str]


class _Part:
    """The problem of one column, or with no packages that of the rows themselves."""

    def __init__(self, problem: Problem, packages: tuple[str, ...], proven: _Proven | None) -> None:
        self.problem = problem
        self.packages = packages
        self.network = Network(problem)
        self.start = self.network.start([one for one in problem.demands if self._counts(one)])
        self._proven = proven
        self._open: dict[str, Domains | None] = {}
        self._paths: dict[str, list[tuple[tuple[str, int], Domains | None]]] = {}
        self._in_order: dict[bool, list[tuple[ProvenSet, list[Demand]]]] = {}

    def _counts(self, demand: Demand) -> bool:
        return demand.variable.name in {*ROW, *self.packages} or bool(demand.mask & ABSENT)

    def narrowed(self, domains: Domains | None, name: str, mask: int) -> Domains | None:
        """Let a component have only these candidates."""
        return None if domains is None else self.network.narrowed(domains, self.network.number[name], mask)

    def versions(self, domains: Domains | None, name: str) -> list[str]:
        """Give the versions of a component that are left, the preferred first."""
        left = 0 if domains is None else domains[self.network.number[name]]
        return list(dict.fromkeys(one.version for one in self.problem.variables[name].chosen(left)))

    def left(self, name: str) -> list[Candidate]:
        """Give the candidates of a component that some solution may have."""
        left = 0 if self.start is None else self.start[self.network.number[name]]
        return self.problem.variables[name].chosen(left)

    def asked_versions(self, name: str) -> list[str]:
        """Give the versions of a component that the request allows, whether or not anything has them."""
        variable = self.problem.variables[name]
        asked = _all_of(variable.present, [one for one in self._demands_of(name) if _is_asked(one)])
        return list(dict.fromkeys(one.version for one in variable.chosen(asked)))

    def version_of(self, solution: Mapping[str, int], name: str) -> str:
        """Give the version of a component in a solution; empty when it has none."""
        return self.problem.variables[name].candidate(solution[name]).version if name in solution else ""

    def cell(self, domains: Domains | None, pins: Mapping[str, int]) -> Cell:
        """Answer for a row, whose domains are given, made by these pins."""
        try:
            solution = self.solve(domains)
            if solution is not None:
                return Cell(tuple(pick_of(self.problem, solution, name) for name in self.packages))
            return Cell(refused=self.why_refused(pins))
        except TooLargeError:
            return Cell(refused=UNDECIDED)

    def solve(self, domains: Domains | None) -> dict[str, int] | None:
        """Find the solution that `resolver.resolve.resolve` would give."""
        solution = None if domains is None else preferred_within(self.network, domains)
        if solution is None or self._proven is None:
            return solution

        def within(demands: Sequence[Demand]) -> dict[str, int] | None:
            narrowed = domains
            for demand in demands:
                narrowed = self.narrowed(narrowed, demand.variable.name, demand.mask)
            return None if narrowed is None else preferred_within(self.network, narrowed)

        has_image = "base-image" in solution
        if has_image not in self._in_order:
            asked = self._proven.asked | ({"base-image"} if has_image else set())
            self._in_order[has_image] = in_order(self.problem, self._proven.sets, asked)
        return first_proven(self.problem, self._in_order[has_image], within)[0]

    def why_refused(self, pins: Mapping[str, int]) -> str:
        """Say which facts refuse a column; of several packages first those that fail alone."""
        alone = {name: self.reason(name, pins) for name in self.packages}
        if len(alone) == 1:
            return alone[self.packages[0]]
        failing = [f"{name}: {reason}" for name, reason in alone.items() if reason != COMBINATION]
        return failing[0] if failing else COMBINATION

    def reason(self, name: str, pins: Mapping[str, int], mask: int = -1) -> str:
        """Name the components whose facts rule out every version of a package.

        Each version that the domains of the row leave nothing for is ruled out by some relation with
        another component. As few of those as are needed are named, the one that rules out most first.

        Parameters
        ----------
        name
            The package, or torch.
        pins
            What the row says.
        mask
            Which of its candidates are meant.
        """
        variable = self.problem.variables[name]
        own = self._demands_of(name)
        left = _all_of(variable.present & mask, [one for one in own if _is_asked(one)])
        ruled_out: dict[str, int] = {}
        for demand in own:
            if not _is_asked(demand):
                word = "support" if demand.kind == "request" else "known-bad"
                ruled_out[word] = ruled_out.get(word, 0) | left & ~demand.mask
        around = self._around(name, pins)
        if around is None:
            return COMBINATION
        for relation in self.problem.relations:
            for word, out in self._rules_out(relation, variable, left, around):
                ruled_out[word] = ruled_out.get(word, 0) | out
        return _fewest(ruled_out, left)

    def _demands_of(self, name: str) -> list[Demand]:
        return [one for one in self.problem.demands if one.variable.name == name]

    def _around(self, name: str, pins: Mapping[str, int]) -> Domains | None:
        """Give what the row leaves of everything else, with a package that may be absent."""
        if name not in self._open:
            meant = {name, *self.packages}
            free = [
                one
                for one in self.problem.demands
                if self._counts(one) and not (one.variable.name in meant and _is_asked(one))
            ]
            self._open[name] = self.network.start(free)
        # Rows come in order, so that most of what the last one said still holds for this one.
        path, domains = self._paths.setdefault(name, []), self._open[name]
        for depth, pin in enumerate(pins.items()):
            if len(path) == depth or path[depth][0] != pin:
                path[depth:] = [(pin, self.narrowed(domains, *pin))]
            domains = path[depth][1]
        return domains

    def _rules_out(
        self, relation: Relation, variable: Variable, left: int, around: Domains
    ) -> Iterator[tuple[str, int]]:
        """Yield which candidates of a component have no partner in a relation, with the other's name."""
        number = self.network.number
        if relation.subject is variable:
            other = around[number[relation.object.name]]
            out = sum(1 << bit for bit in bits(left) if not relation.table[bit] & other)
            yield _word(relation, relation.object.name), out
        elif relation.object is variable:
            subjects = around[number[relation.subject.name]]
            if not subjects & ABSENT:
                allowed = 0
                for bit in bits(subjects):
                    allowed |= relation.table[bit]
                yield _word(relation, relation.subject.name), left & ~allowed


def _each(
    parts: Sequence[_Part], several: Sequence[Domains | None], name: str, mask: int
) -> list[Domains | None]:
    return [part.narrowed(domains, name, mask) for part, domains in zip(parts, several, strict=True)]


def _is_asked(demand: Demand) -> bool:
    """Tell whether a demand says that its component is wanted."""
    return demand.kind == "request" and not demand.mask & ABSENT


def _all_of(mask: int, demands: Sequence[Demand]) -> int:
    for demand in demands:
        mask &= demand.mask
    return mask


def _word(relation: Relation, other: str) -> str:
    return "known-bad" if relation.forbids or other.startswith(WAY_OUT) else other


def _fewest(ruled_out: Mapping[str, int], left: int) -> str:
    """Choose names that together rule out all that is left, the one that rules out most first."""
    named: list[str] = []
    while left:
        best = max(ruled_out, key=lambda word: (ruled_out[word] & left).bit_count(), default="")
        if not best or not ruled_out[best] & left:
            return COMBINATION
        named.append(best)
        left &= ~ruled_out[best]
    return ", ".join(named) or COMBINATION
