"""The feasible matrix as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matrix.tabling.data import Core
    from resolver.table import Table
    from resolver.table.cells import Cell, Column, Row

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --line: #ccc; --head: #eee; --page: #fff; --text: #111;
  --documented: #0a5c2b; --observed: #0b4a8f; --inferred: #7a4b00; --no: #6b6b6b; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --head: #2a2a2a; --page: #161616; --text: #eee;
    --documented: #7ddc9c; --observed: #8fc1ff; --inferred: #f0c070; --no: #a0a0a0; } }
body { margin: 1rem; background: var(--page); color: var(--text); font: 0.9rem/1.4 system-ui, sans-serif; }
h1 { font-size: 1.2rem; }
table { border-collapse: separate; border-spacing: 0; }
caption { text-align: left; padding-bottom: 0.5rem; }
th, td { padding: 0.2rem 0.6rem; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { position: sticky; top: 0; z-index: 1; background: var(--head); }
tbody th { font-weight: normal; background: var(--page); }
tbody th[scope=rowgroup] { padding-top: 1rem; font-weight: bold; background: var(--head); }
.documented { color: var(--documented); } .observed { color: var(--observed); }
.inferred { color: var(--inferred); } .no { color: var(--no); font-style: italic; }
"""
_SCRIPT = """
const box = document.getElementById("filter");
box.parentElement.hidden = false;
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const body of document.querySelectorAll("tbody")) {
    const [heading, ...rows] = body.rows;
    const above = heading.textContent.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const text = above + " " + row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    body.hidden = !shown;
  }
});
"""


def page_of(table: Table, rows: Iterable[Row], core: Core | None = None) -> Iterator[str]:
    """Yield the page in pieces; parameters as in `matrix.tabling.data.json_of`."""
    yield from map(_ascii, _pieces(table, rows, core))


def _ascii(text: str) -> str:
    """Write what is not ASCII as character references, so that every encoding can hold it."""
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _pieces(table: Table, rows: Iterable[Row], core: Core | None) -> Iterator[str]:
    target = table.request.target
    facts = sum(1 for _ in table.catalog.rows())
    title = f"What fits together: {target.site} on {target.date}, {facts} facts"
    names = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in table.columns)
    yield (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
        '<p hidden><label>Show rows with <input id="filter" type="search" '
        'placeholder="2.9.1 3.12"></label></p>\n'
        f"<table>\n<caption>{_caption(table)}</caption>\n"
        f'<thead><tr><th scope="col">torch</th><th scope="col">Python</th>{names}</tr></thead>\n'
    )
    for (images, rocm, verdict), group in groupby(rows, key=lambda one: (one.images, one.rocm, one.verdict)):
        heading = "<br>".join(map(escape, [_heading(table, images, rocm, verdict), *images]))
        span = len(table.columns) + 2
        yield f'<tbody>\n<tr><th scope="rowgroup" colspan="{span}">{heading}</th></tr>\n'
        for row in group:
            yield _row(table, row, core)
        yield "</tbody>\n"
    yield f"</table>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"


def _caption(table: Table) -> str:
    target = table.request.target
    what = f"{target.backend} {', '.join(target.gfx)}".rstrip()
    what += f", kernel driver {table.driver}" if table.driver else ""
    what += f"; only {', '.join(one.text for one in table.limits)}" if table.limits else ""
    documented, observed, inferred, no = (
        f'<span class="{one}">{one}</span>' for one in ("documented", "observed", "inferred", "no")
    )
    return (
        "The best version of each package that resolves with exactly that base image, torch and Python, "
        f"for {escape(what)}. The title of a cell says how far it can be trusted: {documented}, {observed} "
        f"or {inferred}; {no} stands before the components whose facts leave no version."
    )


def _heading(table: Table, images: tuple[str, ...], rocm: str, verdict: str | None) -> str:
    if verdict is None:
        return "Runs nowhere here"
    if table.request.target.backend == "cpu":
        return "CPU"
    without = "" if images else ", no base image fits: only what is published"
    return f"ROCm {rocm}{without}" + (", at own risk" if verdict == "at-own-risk" else "")


def _row(table: Table, row: Row, core: Core | None) -> str:
    head = f'<tr><th scope="row">{escape(row.torch)}</th><th scope="row">{escape(row.python)}</th>'
    if row.verdict is None:
        why = _why(row.refused, row, None, core)
        cells = f'<td class="no" colspan="{len(table.columns)}" title="{why}">no: {escape(row.refused)}</td>'
    else:
        cells = "".join(_cell(row, row.cells[one.name], one, core) for one in table.columns)
    return f"{head}{cells}</tr>\n"


def _cell(row: Row, cell: Cell, column: Column, core: Core | None) -> str:
    if not cell.picks:
        why = _why(cell.refused, row, column, core)
        return f'<td class="no" title="{why}">no: {escape(cell.refused)}</td>'
    pick, fact = cell.weakest
    risk = ", at own risk" if row.verdict == "at-own-risk" else ""
    versions = ", ".join(map(str, cell.picks))
    why = escape(f"{versions}: {pick.support}{risk}; {fact.text}")
    return f'<td class="{pick.support}" title="{why}">{escape(cell.version)}</td>'


def _why(reason: str, row: Row, column: Column | None, core: Core | None) -> str:
    said = [one.text for one in core(row, column)] if core is not None else []
    text = "; ".join(said) or f"no version fits, decided by {reason}"
    return escape(f"{column.name}: {text}" if column else text)
