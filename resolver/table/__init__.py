"""The feasible matrix: for each base image, torch and Python the best version of each extension.

Every cell is the answer to a request of its own (`request_of_cell`). They are not resolved one by
one: the problem of all columns is compiled once, each column gets the part of it that concerns it, and
a row narrows the arc consistent domains of each column, image before torch before Python.

Base images that no fact can tell apart share a row. A torch that runs, but with no base image that the
site offers, has rows without an image: what is published can still be installed beside it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling import compile_problem
from resolver.compiling.part import part_for
from resolver.errors import UsageError
from resolver.explain import core_of
from resolver.facts.catalog import recipe_for
from resolver.model import Requirement
from resolver.problem import ABSENT, bits
from resolver.proven import is_at_risk
from resolver.table.cells import ROW, UNDECIDED, Column, Row
from resolver.table.part import Part, Proven
from resolver.versions import minor, parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend
    from resolver.model import CoreItem, Request, Verdict
    from resolver.network import Domains
    from resolver.problem import Variable

_NEEDED = (Requirement("torch", None, "torch"), Requirement("python", None, "python"))
_IMAGE = Requirement("base-image", None, "base-image")


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
    def _base(self) -> Part:
        return self._part(())

    @cached_property
    def _parts(self) -> list[Part]:
        return [self._part(column.packages) for column in self.columns]

    def _part(self, packages: tuple[str, ...]) -> Part:
        backend = self.request.target.backend
        problem = part_for(self._problem, self.catalog, backend, packages)
        return Part(problem, packages, self._proven(packages))

    def _proven(self, packages: tuple[str, ...]) -> Proven | None:
        if self.request.prefer != "proven":
            return None
        sets = [row for row in self.catalog.proven.values() if row.site in {"", self.request.target.site}]
        return Proven(sets, frozenset({"torch", "python", *packages, *(one.name for one in self.limits)}))

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


def _each(
    parts: Sequence[Part], several: Sequence[Domains | None], name: str, mask: int
) -> list[Domains | None]:
    return [part.narrowed(domains, name, mask) for part, domains in zip(parts, several, strict=True)]
