"""The feasible matrix for programs: CSV (RFC 4180) and one JSON document. The keys are a contract."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import msgspec

from resolver.model import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resolver.model import CoreItem, Distribution
    from resolver.table import Table
    from resolver.table.cells import Cell, Column, Row

    Core = Callable[[Row, Column | None], list[CoreItem]]
    """Says in full why a cell, or a row, is refused."""

ROW_KEYS = ("base_image", "rocm", "torch", "python", "verdict")


def csv_of(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the table as CSV: one line for each image, an empty cell where nothing fits."""
    yield _record([*ROW_KEYS, *(one.name for one in table.columns)])
    for row in rows:
        verdict = row.verdict or f"refused: {row.refused}"
        cells = [row.cells[one.name].version if row.cells else "" for one in table.columns]
        for image in row.images or ("",):
            yield _record([image, row.rocm, row.torch, row.python, verdict, *cells])


def _record(values: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def json_of(table: Table, rows: Iterable[Row], core: Core | None = None) -> Iterator[str]:
    """Yield the table as one JSON document, one row a line.

    Parameters
    ----------
    table, rows
        The table and its rows.
    core
        Gives the whole reason of every refusal; without it only the components are named.
    """
    head = {
        "schema": SCHEMA,
        "target": msgspec.to_builtins(table.request.target),
        "limits": [one.text for one in table.limits],
        "columns": [one.name for one in table.columns],
    }
    yield json.dumps(head)[:-1] + ', "rows": [\n'
    between = ""
    for row in rows:
        said = _row(table, row, core)
        for image in row.images or ("",):
            yield between + json.dumps({"base_image": image, **said})
            between = ",\n"
    yield "\n]}\n"


def _row(table: Table, row: Row, core: Core | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "rocm": row.rocm,
        "torch": row.torch,
        "python": row.python,
        "verdict": row.verdict or "refused",
    }
    if row.verdict is None:
        return said | _refusal(row.refused, core(row, None) if core else None)
    cells = {}
    for one in table.columns:
        cell = row.cells[one.name]
        cells[one.name] = (
            _cell(cell, one)
            if cell.picks
            else _refusal(cell.refused, core(row, one) if core is not None else None)
        )
    return said | {"cells": cells}


def _cell(cell: Cell, column: Column) -> dict[str, Any]:
    if len(column.packages) == 1:
        return _pick(cell.picks[0])
    return {"picks": {pick.name: _pick(pick) for pick in cell.picks}}


def _pick(pick: Distribution) -> dict[str, str]:
    return {
        "version": pick.version,
        "variant": pick.variant,
        "origin": pick.origin,
        "support": pick.support,
    }


def _refusal(reason: str, core: list[CoreItem] | None) -> dict[str, Any]:
    said: dict[str, Any] = {"refused": reason}
    if core is not None:
        said["core"] = msgspec.to_builtins(core)
    return said
