"""The feasible matrix for a terminal.

Rows of the same base images stand together under a heading that names them. The widths of the columns
follow from the versions that a column can have at all, so that no row has to wait for the others. What
does not fit beside one another is folded: each row takes several lines, as the header above it does.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from matrix.resolution_text import title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resolver.table import Table
    from resolver.table.cells import Cell, Column, Row

    Paint = Callable[[str, str], str]
    """Gives a text in a colour, by the number of the colour."""

NARROWEST = len("- base-image")
"""A column holds at least the reasons that are met most."""
RISK, REFUSED = "33", "2"
_GAP = "  "
_REFUSAL = re.compile(r"(?<= )-( [^\s,]+(, [^\s,]+)*)?(?= |$)")


def text_of(table: Table, rows: Iterable[Row], width: int | None, paint: Paint) -> Iterator[str]:
    """Yield the table in lines.

    Parameters
    ----------
    table
        For the columns and what they may hold.
    rows
        Its rows, or some of them.
    width
        Characters in a line; None for as many as are needed.
    paint
        How text is coloured.
    """
    yield f"{title_of(table.request.target)}\n"
    nowhere = [f"{one.name} ({reason})" for one in table.columns if (reason := table.nowhere(one))]
    if nowhere:
        yield f"No version fits any row: {', '.join(nowhere)}\n"
    columns = [one for one in table.columns if not table.nowhere(one)]
    sheet = _Sheet(table, columns, width, paint)
    for heading, group in groupby(rows, key=_group):
        yield sheet.heading(heading)
        for row in group:
            yield sheet.line(row)


def _group(row: Row) -> tuple[object, ...]:
    return row.images, row.rocm, row.verdict


class _Sheet:
    """Widths, and lines of these widths."""

    def __init__(self, table: Table, columns: Sequence[Column], width: int | None, paint: Paint) -> None:
        self._paint = paint
        self._columns = columns
        self._no_image = (
            "" if table.request.target.backend == "cpu" else ", no base image fits: only what is published"
        )
        torch = max(map(len, ["torch", *table.torch_versions()]))
        self._head = (torch, len("python"))
        self._widths = {one.name: _width(table, one) for one in columns}
        self._blocks = list(self._fold(width))

    def _fold(self, width: int | None) -> Iterator[list[Column]]:
        """Yield the columns that stand beside one another."""
        room = None if width is None else width - sum(self._head) - 2 * len(_GAP)
        block: list[Column] = []
        used = 0
        for one in self._columns:
            wanted = self._widths[one.name] + (len(_GAP) if block else 0)
            if block and room is not None and used + wanted > room:
                yield block
                block, used, wanted = [], 0, self._widths[one.name]
            block.append(one)
            used += wanted
        yield block

    def heading(self, group: tuple[object, ...]) -> str:
        """Give the lines above the rows of some images: what these are, and the names of the columns."""
        images, rocm, verdict = group
        said = f"ROCm {rocm}" if rocm else ""
        if isinstance(images, tuple) and not images and verdict:
            said += self._no_image
        said += ", at own risk" if verdict == "at-own-risk" else ""
        said = said if verdict else "Runs nowhere here"
        lines = [self._paint(RISK, said) if verdict == "at-own-risk" else said] if said else []
        lines += [f"  {image}" for image in images] if isinstance(images, tuple) else []
        names = [[one.name for one in block] for block in self._blocks]
        return "\n" + "\n".join([*lines, *self._fill("torch", "python", names if verdict else [[]])]) + "\n"

    def line(self, row: Row) -> str:
        """Give the lines of a row."""
        if row.verdict is None:
            return f"{self._beginning(row.torch, row.python)}{self._paint(REFUSED, f'- {row.refused}')}\n"
        cells = [[self._cell(row.cells[one.name], one) for one in block] for block in self._blocks]
        return "\n".join(self._fill(row.torch, row.python, cells)) + "\n"

    def _fill(self, torch: str, python: str, blocks: Sequence[Sequence[str]]) -> Iterator[str]:
        """Put texts into their columns; what begins with a dash is a refusal."""
        head = self._beginning(torch, python)
        for block, texts in zip(self._blocks, blocks, strict=False):
            padded = [text.ljust(self._widths[one.name]) for one, text in zip(block, texts, strict=False)]
            line = (head + _GAP.join(padded)).rstrip()
            yield re.sub(_REFUSAL, lambda found: self._paint(REFUSED, found[0]), line)
            head = " " * len(head)

    def _beginning(self, torch: str, python: str) -> str:
        return f"{torch:<{self._head[0]}}{_GAP}{python:<{self._head[1]}}{_GAP}"

    def _cell(self, cell: Cell, column: Column) -> str:
        if cell.picks:
            return cell.version
        first, *_ = cell.refused.split(", ")
        room = self._widths[column.name]
        return next((one for one in (f"- {cell.refused}", f"- {first}") if len(one) <= room), "-")


def _width(table: Table, column: Column) -> int:
    longest = [max(map(len, versions), default=0) for versions in table.possible(column)]
    together = sum(longest) + len(" + ") * (len(longest) - 1)
    return max(len(column.name), NARROWEST, together)
