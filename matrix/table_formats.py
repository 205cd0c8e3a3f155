"""The feasible matrix as text for a terminal, CSV (RFC 4180) and JSON; `matrix.report` has it as HTML.

The keys of CSV and JSON are a contract. Every format is written row by row, while the table is computed.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from matrix.json_document import JsonDocument
from matrix.resolution_text import title_of
from resolver.facts.schema import Status
from resolver.model import CoreItem, Origin, Target

if TYPE_CHECKING:
    from matrix.screen import Screen
    from resolver.model import Distribution
    from resolver.table import Cell, Column, Row, Table

    Core = Callable[[Row, Column | None], list[CoreItem]]
    """Returns the whole reason why a cell, or a row, is refused."""

ROW_KEYS = ("base_image", "rocm", "torch", "python", "verdict")
_RISK, _REFUSED = "yellow", "dim"
_MIN_WIDTH = len("- base-image")
"""Every column has room for the most frequent reasons."""
_GAP = "  "
_REFUSAL = re.compile(r"(?<= )-( [^\s,]+(, [^\s,]+)*)?(?= |$)")
_NO_IMAGE = ", no base image works: published wheels only"
_REFUSED_ROWS = "Runs nowhere at this site"


class CellDocument(msgspec.Struct, kw_only=True):
    """A cell: a version, those of the packages of a combination, or why there is none."""

    version: str | UnsetType = UNSET
    variant: str | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    support: Status | UnsetType = UNSET
    picks: dict[str, CellDocument] | UnsetType = UNSET
    refused: str | UnsetType = UNSET
    core: list[CoreItem] | UnsetType = UNSET


class RowDocument(msgspec.Struct, kw_only=True):
    """What works with a base image, a torch and a Python."""

    base_image: str
    rocm: str
    torch: str
    python: str
    verdict: Literal["supported", "at-own-risk", "refused"]
    cells: dict[str, CellDocument] | UnsetType = UNSET
    refused: str | UnsetType = UNSET
    core: list[CoreItem] | UnsetType = UNSET


class TableDocument(JsonDocument, kw_only=True):
    """Everything that works together at a site."""

    status: Literal["ok"] = "ok"
    target: Target
    limits: list[str]
    columns: list[str]
    rows: list[RowDocument]


def answer_of(table: Table, rows: Iterable[Row]) -> str:
    """Return how many torch versions work, and how many of them with every package, in one sentence."""
    columns = [column for column in table.columns if not table.refused_everywhere(column)]
    working = [row for row in rows if row.verdict]
    complete = [row for row in working if all(row.cells[column.name].picks for column in columns)]
    torches, full = ({row.torch for row in group} for group in (working, complete))
    plural = "s work" if len(torches) > 1 else " works"
    answer = f"{len(torches)} torch version{plural} at {table.request.target.site}"
    what = columns[0].name if len(columns) == 1 else "every package below"
    return f"{answer}, {len(full)} with {what}." if columns else f"{answer}."


def to_text(table: Table, rows: Iterable[Row], screen: Screen) -> Iterator[str]:
    """Yield the table in lines.

    Rows of the same base images follow a heading that names the images. The widths of the columns follow
    from the versions that a column can have at all, so no row has to wait for the others. If the columns
    do not fit side by side, each row takes several lines.

    Parameters
    ----------
    table
        The columns and their possible versions.
    rows
        Its rows, or some of them.
    screen
        What the text is written to.
    """
    yield f"{title_of(table.request.target)}\n"
    refused = {column.name: table.refused_everywhere(column) for column in table.columns}
    listed = ", ".join(f"{name} ({reason})" for name, reason in refused.items() if reason)
    if listed:
        yield screen.wrapped(f"Not available in any row: {listed}") + "\n"
    layout = _Layout(table, [column for column in table.columns if not refused[column.name]], screen)
    for _, group in groupby(rows, key=lambda row: (row.images, row.rocm, row.verdict)):
        first = next(group)
        yield layout.heading(first)
        for row in chain([first], group):
            yield layout.line(row)


class _Layout:
    """Widths of the columns, and lines of these widths."""

    def __init__(self, table: Table, columns: Sequence[Column], screen: Screen) -> None:
        self._styled = screen.styled
        self._columns = columns
        self._is_cpu = table.request.target.backend == "cpu"
        torch = max(map(len, ["torch", *table.torch_versions()]))
        self._head = (torch, len("python"))
        self._widths = {column.name: _width(table, column) for column in columns}
        self._blocks = list(self._fold(screen.width))

    def _fold(self, width: int | None) -> Iterator[list[Column]]:
        """Yield the columns that fit side by side."""
        room = None if width is None else width - sum(self._head) - 2 * len(_GAP)
        block: list[Column] = []
        used = 0
        for column in self._columns:
            needed = self._widths[column.name] + (len(_GAP) if block else 0)
            if block and room is not None and used + needed > room:
                yield block
                block, used, needed = [], 0, self._widths[column.name]
            block.append(column)
            used += needed
        yield block

    def heading(self, row: Row) -> str:
        """Return the heading of a group of rows: the names of the images and of the columns."""
        text = _heading(row, is_cpu=self._is_cpu)
        lines = [self._styled(_RISK, text) if row.verdict == "at-own-risk" else text] if text else []
        lines += [f"  {image}" for image in row.images]
        names = [[column.name for column in block] for block in self._blocks]
        header = self._fill("torch", "python", names if row.verdict else [[]])
        return "\n" + "\n".join([*lines, *header]) + "\n"

    def line(self, row: Row) -> str:
        """Return the lines of a row."""
        if row.verdict is None:
            refusal = self._styled(_REFUSED, f"- {row.refused}")
            return f"{self._start(row.torch, row.python)}{refusal}\n"
        cells = [[self._cell(row.cells[column.name], column) for column in block] for block in self._blocks]
        return "\n".join(self._fill(row.torch, row.python, cells)) + "\n"

    def _fill(self, torch: str, python: str, blocks: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield lines with texts in their columns; a text that starts with a dash is a refusal."""
        start = self._start(torch, python)
        for block, texts in zip(self._blocks, blocks, strict=False):
            padded = [
                text.ljust(self._widths[column.name]) for column, text in zip(block, texts, strict=False)
            ]
            line = (start + _GAP.join(padded)).rstrip()
            yield re.sub(_REFUSAL, lambda match: self._styled(_REFUSED, match[0]), line)
            start = " " * len(start)

    def _start(self, torch: str, python: str) -> str:
        return f"{torch:<{self._head[0]}}{_GAP}{python:<{self._head[1]}}{_GAP}"

    def _cell(self, cell: Cell, column: Column) -> str:
        if cell.picks:
            return cell.version
        first, *_ = cell.refused.split(", ")
        room = self._widths[column.name]
        return next((text for text in (f"- {cell.refused}", f"- {first}") if len(text) <= room), "-")


def _width(table: Table, column: Column) -> int:
    longest = [max(map(len, versions), default=0) for versions in table.possible(column)]
    together = sum(longest) + len(" + ") * (len(longest) - 1)
    return max(len(column.name), _MIN_WIDTH, together)


def _heading(row: Row, *, is_cpu: bool) -> str:
    """Return the heading of rows with the same images, ROCm and verdict; empty for a CPU."""
    if row.verdict is None:
        return _REFUSED_ROWS
    text = f"ROCm {row.rocm}" if row.rocm else ""
    text += "" if row.images or is_cpu else _NO_IMAGE
    return text + (", at own risk" if row.verdict == "at-own-risk" else "")


def to_csv(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the table as CSV: one line for each image, an empty cell if no version fits."""
    yield _csv_line([*ROW_KEYS, *(column.name for column in table.columns)])
    for row in rows:
        verdict = row.verdict or f"refused: {row.refused}"
        cells = [row.cells[column.name].version if row.cells else "" for column in table.columns]
        for image in row.images or ("",):
            yield _csv_line([image, row.rocm, row.torch, row.python, verdict, *cells])


def _csv_line(values: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def to_json(table: Table, rows: Iterable[Row], core: Core | None = None) -> Iterator[str]:
    """Yield the table as one JSON document, one row per line.

    Parameters
    ----------
    table, rows
        The table and its rows.
    core
        Returns the whole reason for a refusal; without it, JSON only names the components.
    """
    document = TableDocument(
        target=table.request.target,
        limits=[requirement.text for requirement in table.limits],
        columns=[column.name for column in table.columns],
        rows=[],
    )
    yield _json(document).removesuffix("]}") + "\n"
    separator = ""
    for row in rows:
        row_document = _row_document(table, row, core)
        for image in row.images or ("",):
            yield separator + _json(replace(row_document, base_image=image))
            separator = ",\n"
    yield "\n]}\n"


def _json(document: msgspec.Struct) -> str:
    return json.dumps(msgspec.to_builtins(document))


def _row_document(table: Table, row: Row, core: Core | None) -> RowDocument:
    document = RowDocument(
        base_image="", rocm=row.rocm, torch=row.torch, python=row.python, verdict=row.verdict or "refused"
    )
    if row.verdict is None:
        document.refused = row.refused
        document.core = core(row, None) if core else UNSET
        return document
    document.cells = {}
    for column in table.columns:
        cell = row.cells[column.name]
        if not cell.picks:
            reasons = core(row, column) if core else UNSET
            document.cells[column.name] = CellDocument(refused=cell.refused, core=reasons)
        elif len(column.packages) == 1:
            document.cells[column.name] = _pick_document(cell.picks[0])
        else:
            picks = {pick.name: _pick_document(pick) for pick in cell.picks}
            document.cells[column.name] = CellDocument(picks=picks)
    return document


def _pick_document(pick: Distribution) -> CellDocument:
    return CellDocument(version=pick.version, variant=pick.variant, origin=pick.origin, support=pick.support)
