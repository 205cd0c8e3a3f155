"""The feasible matrix as data of the page: every text once, and cells that refer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from matrix.report.page import ReportPage
from matrix.show.table_formats import NO_IMAGE, REFUSED_ROWS
from resolver.answers.suggest import request_arguments
from resolver.versions import labelled, wheel_label

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from builders.index import Index
    from matrix.show.table_formats import Core
    from resolver.answers.table import Cell, Column, Table, TableRow
    from resolver.model import CoreItem, Distribution, Fact, Request

_ANY_PYTHON = "py3"


class Pool:
    """A list of values without repetitions."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: object) -> int:
        """Return the position of a value; equal keys have equal values."""
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def wheels_of(index: Index) -> Mapping[tuple[str, str], frozenset[str]]:
    """Return the interpreters that an index has a wheel for, by project and version."""
    wheels: dict[tuple[str, str], frozenset[str]] = {}
    for project in index.projects():
        for path in index.wheels(project):
            try:
                _, version, _, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            names = {_ANY_PYTHON if tag.abi == "abi3" else tag.interpreter for tag in tags}
            key = project, str(version)
            wheels[key] = wheels.get(key, frozenset()) | names
    return wheels


class TableData:
    """Collect the rows of a table as data of the page.

    Parameters
    ----------
    table
        The table.
    core
        Returns the whole reason for a refusal; without it, the page only names the components.
    wheels
        The wheels that exist already, from `wheels_of`.
    locked
        The versions of a lock for the table's target by name. The row that has them is marked.
    """

    def __init__(
        self,
        table: Table,
        core: Core | None = None,
        wheels: Mapping[tuple[str, str], frozenset[str]] | None = None,
        locked: Mapping[str, str] | None = None,
    ) -> None:
        self._table = table
        self._core = core
        self._wheels = wheels or {}
        self._locked = locked or {}
        self._facts, self._cells, self._groups = Pool(), Pool(), Pool()

    def collect(self, rows: Iterable[TableRow]) -> dict[str, Any]:
        """Return the data of the page for these rows."""
        table = self._table
        listed, locked = [], None
        for number, row in enumerate(rows):
            listed.append(self._row(row))
            if self._is_locked(row):
                locked = number
        return {
            "columns": [
                {"name": column.name, "requirements": [item.text for item in column.requirements]}
                for column in table.columns
            ],
            "limits": [requirement.text for requirement in table.limits],
            "options": _options_of(table.request),
            "groups": self._groups.values,
            "facts": self._facts.values,
            "cells": self._cells.values,
            "rows": listed,
            "locked": locked,
        }

    def _is_locked(self, row: TableRow) -> bool:
        if row.verdict is None or (row.torch, row.python) != tuple(
            map(self._locked.get, ("torch", "python"))
        ):
            return False
        image = self._locked.get("base-image")
        return image in row.images if image else not row.images

    def _row(self, row: TableRow) -> list[Any]:
        group = self._groups.number(
            (row.images, row.rocm, row.verdict),
            {
                "heading": self._heading(row),
                "images": row.images,
                "risk": row.verdict == "at-own-risk",
            },
        )
        if row.verdict is None:
            refusal = self._refusal(row.refused, self._core(row, None) if self._core else [])
            cells = [refusal] * len(self._table.columns)
        else:
            cells = [self._cell(row, row.cells[column.name], column) for column in self._table.columns]
        return [group, row.torch, row.python, *cells]

    def _heading(self, row: TableRow) -> str:
        if row.verdict is None:
            return REFUSED_ROWS
        if self._table.request.target.backend == "cpu":
            return "CPU"
        return f"ROCm {row.rocm}" + ("" if row.images else NO_IMAGE)

    def _cell(self, row: TableRow, cell: Cell, column: Column) -> int:
        if not cell.picks:
            return self._refusal(cell.refused, self._core(row, column) if self._core else [])
        states = [self._state(row, pick) for pick in cell.picks]
        key = tuple(
            (pick.name, pick.key, pick.origin, pick.support, state, tuple(fact.text for fact in pick.facts))
            for pick, state in zip(cell.picks, states, strict=True)
        )
        document = {
            "text": cell.version,
            "state": min(states, key=("buildable", "built", "published", "present").index),
            "support": cell.weakest[0].support,
            "picks": [
                {
                    "name": pick.name,
                    "version": pick.key,
                    "state": state,
                    "support": pick.support,
                    "risk": pick.verdict == "at-own-risk",
                    "facts": [self._fact(fact) for fact in pick.facts],
                }
                for pick, state in zip(cell.picks, states, strict=True)
            ],
        }
        return self._cells.number(key, document)

    def _fact(self, fact: Fact) -> int:
        document = [fact.text, fact.status, fact.source, fact.note]
        return self._facts.number(tuple(document), document)

    def _refusal(self, reason: str, core: Iterable[CoreItem]) -> int:
        items = [[item.text, item.kind, item.source, ""] for item in core]
        numbers = [self._facts.number(tuple(item), item) for item in items]
        document = {"text": reason, "state": "impossible", "core": numbers}
        return self._cells.number((reason, *numbers), document)

    def _state(self, row: TableRow, pick: Distribution) -> str:
        if pick.origin in {"base-image", "preinstalled"}:
            return "present"
        if pick.origin != "build":
            return "published"
        if not self._wheels:
            return "buildable"
        target = self._table.request.target
        label = wheel_label(backend=target.backend, torch=row.torch, rocm=row.rocm, gfx=target.gfx)
        interpreters = self._wheels.get((pick.name, labelled(pick.version, label)), frozenset())
        names = {_ANY_PYTHON, f"cp{row.python.replace('.', '')}"}
        return "built" if interpreters & names else "buildable"


def table_report(table: Table, rows: Iterable[TableRow], core: Core | None = None) -> ReportPage:
    """Return a page with only the table."""
    target = table.request.target
    return ReportPage(
        title=f"Compatible versions: {target.site} on {target.date}",
        subtitle=subtitle_of(table),
        table=TableData(table, core).collect(rows),
    )


def subtitle_of(table: Table) -> str:
    """Return a line with the target of a table, its limits, and the number of facts it is computed from."""
    target = table.request.target
    parts = [f"{target.backend} {', '.join(target.gfx)}".rstrip()]
    parts += [f"kernel driver {table.driver}"] if table.driver else []
    parts += [f"only {', '.join(requirement.text for requirement in table.limits)}"] if table.limits else []
    facts = sum(1 for _ in table.catalog.rows())
    return f"{'; '.join(parts)}; from {facts} facts."


def _options_of(request: Request) -> list[str]:
    """Return the options of all commands of the page; each cell adds its versions and its base image."""
    target = replace(request.target, base_image=None)
    return list(request_arguments(replace(request, target=target, requirements=(), preinstalled=None)))
