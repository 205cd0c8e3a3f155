"""The feasible matrix as text, CSV (RFC 4180) and JSON, the latter two row by row while it is computed."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from matrix.show.json_document import JsonDocument
from matrix.show.resolution_text import title_of
from resolver.answers.table import Cell
from resolver.facts.schema import Status
from resolver.model import Origin, Target, Verdict
from resolver.texts import html_table
from resolver.versions import minor, newest_first, sort_key

if TYPE_CHECKING:
    from matrix.show.render import Screen
    from resolver.answers.table import Table, TableRow

ROW_KEYS = ("base_image", "rocm", "torch", "python", "verdict")
_RISK, _REFUSED = "yellow", "dim"
_GAP = "  "
_ROCM_LABEL = re.compile(r"\+rocm[\d.]+(?![\w.])")
NO_IMAGE = ", no base image works: published wheels only"


class CellDocument(msgspec.Struct, kw_only=True):
    """A cell: a version, or the reason why no version works."""

    version: str | UnsetType = UNSET
    variant: str | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    support: Status | UnsetType = UNSET
    refused: str | UnsetType = UNSET


class RowDocument(msgspec.Struct, kw_only=True):
    """The versions that work with a base image, a torch and a Python."""

    base_image: str
    rocm: str
    torch: str
    python: str
    verdict: Verdict
    cells: dict[str, CellDocument]


class TableDocument(JsonDocument, kw_only=True):
    """The versions that work together at a site."""

    status: Literal["ok"] = "ok"
    target: Target
    limits: list[str]
    columns: list[str]
    rows: list[RowDocument]

    def _repr_html_(self) -> str:
        head = ("image", "ROCm", "torch", "Python", *self.columns)
        rows = []
        for row in self.rows:
            cells = (cell.version or f"- {cell.refused}" for cell in row.cells.values())
            rows.append((row.base_image, row.rocm, row.torch, row.python, *cells))
        return html_table(f"{self.target.site} on {self.target.date}", [head, *rows])


def answer_of(table: Table, rows: Sequence[TableRow]) -> str:
    """Return a sentence with the numbers of torch versions that work, and that work with every package."""
    columns = [column for column in table.columns if not table.refused_everywhere(column)]
    complete = [row for row in rows if all(row.cells[column].version for column in columns)]
    torches, full = ({row.torch for row in group} for group in (rows, complete))
    plural = "s work" if len(torches) > 1 else " works"
    answer = f"{len(torches)} torch version{plural} at {table.request.target.site}"
    if not full and len(columns) > 1:
        most = max((sum(bool(cell.version) for cell in row.cells.values()) for row in rows), default=0)
        some = f"at most {most} of {len(columns)} packages work with one of them"
        return f"{answer}. None has every package; {some}."
    what = columns[0] if len(columns) == 1 else "every package below"
    return f"{answer}, {len(full)} with {what}." if columns else f"{answer}."


def to_summary(table: Table, rows: Sequence[TableRow], screen: Screen) -> Iterator[str]:
    """Yield a table with one column for each ROCm line: its newest torch, and a line for each package.

    Each column is one row of the whole table, with the Pythons that have the same versions.
    """
    yield f"{title_of(table.request.target)}\n"
    chosen = newest_rows(rows)
    left_out = newest_first({minor(row.rocm) for row in rows if row.rocm} - chosen.keys())
    if left_out:
        why = "no base image of the site, or at your own risk"
        yield screen.wrapped(f"Not shown: ROCm {', '.join(left_out)} ({why})") + "\n"
    shown = {
        name: [_short(row.cells[name].version) or "-" for row in chosen.values()] for name in table.columns
    }
    missing = [name for name, texts in shown.items() if set(texts) == {"-"}]
    if missing:
        yield screen.wrapped(f"No version for any of these: {', '.join(missing)}") + "\n"
    lines = [
        ["ROCm", *(row.rocm or "-" for row in chosen.values())],
        ["torch", *(_short(row.torch) for row in chosen.values())],
        ["python", *(_pythons(row, rows) for row in chosen.values())],
        *([name, *texts] for name, texts in shown.items() if name not in missing),
    ]
    if any(row.verdict == "at-own-risk" for row in chosen.values()):
        lines.insert(
            1, ["", *("own risk" if row.verdict == "at-own-risk" else "" for row in chosen.values())]
        )
    if not any(row.rocm for row in chosen.values()):
        del lines[0]
    for block in _fold(lines, math.inf if screen.width is None else screen.width):
        yield "\n" + _aligned(block, screen)


def newest_rows(rows: Iterable[TableRow]) -> dict[str, TableRow]:
    """Return the newest torch of each line of ROCm that the site supports in an image, else of every line."""
    chosen: dict[str, TableRow] = {}
    for row in sorted(rows, key=_rank, reverse=True):
        chosen.setdefault(minor(row.rocm) if row.rocm else "", row)
    usable = {
        line: row for line, row in chosen.items() if row.images and row.verdict == "supported"
    } or chosen
    return {line: usable[line] for line in newest_first(usable)}


def _rank(row: TableRow) -> tuple[object, ...]:
    available = sum(bool(cell.version) for cell in row.cells.values())
    return (
        sort_key(row.torch),
        row.verdict == "supported",
        available,
        sort_key(row.rocm or "0"),
        sort_key(row.python),
    )


def _pythons(row: TableRow, rows: Iterable[TableRow]) -> str:
    """Return the Pythons that have the same versions as a row in its base images, as a range if possible."""
    same = (
        other.python
        for other in rows
        if (other.images, other.rocm, other.torch, other.verdict)
        == (row.images, row.rocm, row.torch, row.verdict)
        and all(other.cells[name].version == cell.version for name, cell in row.cells.items())
    )
    return range_of(same)


def range_of(pythons: Iterable[str]) -> str:
    """Return Pythons as a range if possible, the newest last."""
    same = {int(minor(python).partition(".")[2]) for python in pythons}
    oldest, newest = min(same), max(same)
    if len(same) > 2 and len(same) == newest - oldest + 1:  # noqa: PLR2004
        return f"3.{oldest} to 3.{newest}"
    return ", ".join(f"3.{number}" for number in sorted(same))


def _short(version: str) -> str:
    """Return a version without the label that only repeats the ROCm of the column."""
    return _ROCM_LABEL.sub("", version)


def to_text(table: Table, rows: Sequence[TableRow], screen: Screen) -> Iterator[str]:
    """Yield the parts of the table as text; one heading names the base images that have the same rows."""
    target = table.request.target
    yield f"{title_of(target)}\n"
    refused = {name: table.refused_everywhere(name) for name in table.columns}
    listed = ", ".join(f"{name} ({reason})" for name, reason in refused.items() if reason)
    if listed:
        yield screen.wrapped(f"Not available in any row: {listed}") + "\n"
    names = [name for name in table.columns if not refused[name]]
    for _, group in groupby(rows, key=lambda row: (row.images, row.rocm, row.verdict)):
        same = list(group)
        yield from _heading(same[0], screen, is_cpu=target.backend == "cpu")
        lines = [["torch, python", *names]]
        for row in same:
            cells = (row.cells[name] for name in names)
            shown = (cell.version or f"- {cell.refused.split(', ')[0]}" for cell in cells)
            lines.append([f"{row.torch}, {row.python}", *shown])
        for block in _fold(lines, math.inf if screen.width is None else screen.width):
            yield "\n" + _aligned(block, screen)


def _fold(lines: Sequence[Sequence[str]], room: float) -> Iterator[list[list[str]]]:
    """Yield tables with the first column and as many others as fit side by side."""
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    start, used = 0, first
    for number, width in enumerate(others):
        used += len(_GAP) + width
        if used > room and number > start:
            yield [[line[0], *line[start + 1 : number + 1]] for line in lines]
            start, used = number, first + len(_GAP) + width
    yield [[line[0], *line[start + 1 :]] for line in lines]


def _aligned(lines: Sequence[Sequence[str]], screen: Screen) -> str:
    """Return lines with texts in columns; a text that starts with a dash is a refusal."""
    cells = [[(_REFUSED, text) if text.startswith("-") else text for text in line] for line in lines]
    return screen.table(cells, indent="") + "\n"


def _heading(row: TableRow, screen: Screen, *, is_cpu: bool) -> Iterator[str]:
    """Yield the heading of rows with the same images, ROCm and verdict."""
    yield "\n"
    text = f"ROCm {row.rocm}" if row.rocm else ""
    text += "" if row.images or is_cpu else NO_IMAGE
    if row.verdict == "at-own-risk":
        yield screen.styled(_RISK, f"{text}, at your own risk") + "\n"
    elif text:
        yield f"{text}\n"
    for image in row.images:
        yield f"  {image}\n"


def to_csv(table: Table, rows: Iterable[TableRow]) -> Iterator[str]:
    """Yield the table as CSV: one line for each image, an empty cell if no version fits."""
    yield _csv_line([*ROW_KEYS, *table.columns])
    for row in rows:
        cells = [row.cells[name].version for name in table.columns]
        for image in row.images or ("",):
            yield _csv_line([image, row.rocm, row.torch, row.python, row.verdict, *cells])


def _csv_line(values: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def document_of(table: Table, rows: Iterable[TableRow], warnings: Sequence[str] = ()) -> TableDocument:
    """Return the table as a document."""
    return TableDocument(
        warnings=list(warnings),
        target=table.request.target,
        limits=[requirement.text for requirement in table.limits],
        columns=[*table.columns],
        rows=list(_documents(table, rows)),
    )


def to_json(table: Table, rows: Iterable[TableRow], *, warnings: Sequence[str] = ()) -> Iterator[str]:
    """Yield the table as one JSON document, one row per line."""
    yield _json(document_of(table, (), warnings)).removesuffix("]}") + "\n"
    separator = ""
    for row in _documents(table, rows):
        yield separator + _json(row)
        separator = ",\n"
    yield "\n]}\n"


def _documents(table: Table, rows: Iterable[TableRow]) -> Iterator[RowDocument]:
    for row in rows:
        cells = {name: _cell_document(row.cells[name]) for name in table.columns}
        for image in row.images or ("",):
            yield RowDocument(
                base_image=image,
                rocm=row.rocm,
                torch=row.torch,
                python=row.python,
                verdict=row.verdict,
                cells=cells,
            )


def _json(document: msgspec.Struct) -> str:
    return json.dumps(msgspec.to_builtins(document))


def _cell_document(cell: Cell) -> CellDocument:
    pick = cell.pick
    if pick is None:
        return CellDocument(refused=cell.refused)
    return CellDocument(version=pick.version, variant=pick.variant, origin=pick.origin, support=pick.support)
