"""The HTML page: a Jinja2 template with the styles, scripts and data in it, such as the feasible matrix."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from matrix.command_line.arguments import request_arguments
from matrix.show.table_formats import NO_IMAGE, range_of
from resolver.errors import EnvironmentLacksError
from resolver.versions import labelled, wheel_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builders.index import Index
    from matrix.show.json_document import ConflictDocument
    from resolver.answers.table import Cell, Table, TableRow
    from resolver.model import Distribution


_FOLDER = Path(__file__).parent
_TEMPLATES = _FOLDER / "templates"
VENDORED = _FOLDER / "vendored"
"""The directory into which `hatch_build.py` writes the JavaScript libraries."""
_SOURCE_MAP = re.compile(r"^//[#@] sourceMappingURL=.*$|/\*[#@] sourceMappingURL=.*?\*/", re.MULTILINE)
_COMMIT_SOURCE = re.compile(r"(?:git:)?([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})(?::([^\s,()]+))?")
_URL = re.compile(r"https?://[^\s,;()<>\"']+")

_ANY_PYTHON = "py3"
_Pool = dict[Hashable, tuple[int, Any]]
"""Values without repetitions, each with its position; equal keys have equal values."""


class ReportPage(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a page. A section without data is left out."""

    title: str
    subtitle: str = ""
    lock: str = ""
    """The lock as `matrix resolve` prints it."""
    table: dict[str, Any] | None = None
    """From `TableData`."""
    graph: dict[str, Any] | None = None
    """From `matrix.commands.report.graph_data`."""
    builds: Sequence[dict[str, Any]] = ()
    """The records of builds."""
    wheels: Sequence[dict[str, Any]] = ()
    """From `matrix.commands.report.wheels`."""
    conflict: ConflictDocument | None = None
    absent: Sequence[tuple[str, str]] = ()
    """The sections without data, each with the command that provides the data."""


def render_page(report: ReportPage) -> str:
    """Return a page as HTML in ASCII. It loads nothing, so it works from a file and without a network."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True)
    environment.filters["sources"] = lambda text: Markup("").join(
        Markup('<a href="{}" rel="noreferrer">{}</a>').format(url, part) if url else part
        for part, url in linked(text)
    )
    environment.filters["shell"] = shlex.join
    libraries = [library("tabulator.js")] if report.table else []
    styles = [library("tabulator.css")] if report.table else []
    styles.append((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    own = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    # The scripts have non-ASCII characters only in strings and comments, where escapes are allowed.
    scripts = [text.encode("ascii", "backslashreplace").decode() for text in (*libraries, own)]
    # The page's content security policy allows the scripts with these hashes.
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    page = environment.get_template("report.html.j2").render(
        report=report,
        styles=[Markup(style) for style in styles],  # noqa: S704  files of the package
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        hashes=" ".join(f"'sha256-{digest}'" for digest in digests),
        data=Markup(script_json({"table": report.table, "graph": report.graph})),  # noqa: S704  escaped
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()


def library(name: str) -> str:
    """Return a file of a JavaScript library, with its licence; the package may have been built without it."""
    path = VENDORED / name
    try:
        text = path.read_text(encoding="utf-8")
        licence = path.with_suffix(".LICENSE").read_text(encoding="utf-8").replace("*/", "* /")
    except OSError:
        msg = "HTML pages need JavaScript libraries, and this installation of matrix was built without them."
        hint = (
            "Install matrix again where an npm registry can be reached; NPM_CONFIG_REGISTRY can name one. "
            "Text, CSV and JSON need no libraries."
        )
        raise EnvironmentLacksError(msg, hint=hint) from None
    return f"/*\n{licence}*/\n{_SOURCE_MAP.sub('', text)}"


def script_json(value: object) -> str:
    r"""Return JSON for a script element: no text in it can end the element.

    Examples
    --------
    >>> script_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def linked(text: str) -> list[tuple[str, str]]:
    """Return the parts of a source, each with its URL or an empty string.

    Examples
    --------
    >>> linked("ROCm/apex@f18052b57ca7:setup.py, a talk")[0]
    ('ROCm/apex@f18052b57ca7:setup.py', 'https://github.com/ROCm/apex/blob/f18052b57ca7/setup.py')
    >>> linked("a talk")
    [('a talk', '')]
    """
    parts: list[tuple[str, str]] = []
    at = 0
    for match in re.finditer(f"{_URL.pattern}|{_COMMIT_SOURCE.pattern}", text):
        if match.start() > at:
            parts.append((text[at : match.start()], ""))
        shown = match[0].rstrip(".")
        parts.append((shown, _url_of(shown)))
        at = match.start() + len(shown)
    return [*parts, (text[at:], "")] if at < len(text) else parts


def _url_of(source: str) -> str:
    if match := _COMMIT_SOURCE.fullmatch(source):
        repository, commit, path = match.groups()
        return f"https://github.com/{repository}/" + (f"blob/{commit}/{path}" if path else f"tree/{commit}")
    return source


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
    """Collect the rows of a table as data of the page: every text once, and cells that refer to it.

    `wheels` are those of an index, from `wheels_of`. The row with the versions in `locked` is marked.
    """

    def __init__(
        self,
        table: Table,
        wheels: Mapping[tuple[str, str], frozenset[str]] | None = None,
        locked: Mapping[str, str] | None = None,
    ) -> None:
        self._table = table
        self._wheels = wheels or {}
        self._locked = locked or {}
        self._facts: _Pool = {}
        self._cells: _Pool = {}
        self._groups: _Pool = {}

    def collect(self, rows: Iterable[TableRow]) -> dict[str, Any]:
        """Return the data of the page for these rows."""
        table = self._table
        listed: list[list[Any]] = []
        pythons: list[list[str]] = []
        locked = None
        for row in sorted(rows, key=_is_from_commit):
            group, torch, _, *cells = values = self._row(row)
            is_locked = self._is_locked(row)
            above = listed[-1] if listed and not is_locked and locked != len(listed) - 1 else []
            if above and above == [group, torch, above[2], *cells]:  # only Python differs
                pythons[-1].append(row.python)
                continue
            locked = len(listed) if is_locked else locked
            listed.append(values)
            pythons.append([row.python])
        for values, same in zip(listed, pythons, strict=True):
            values[2] = range_of(same)
        # The options of all commands of the page; each cell adds its versions and its base image.
        target = replace(table.request.target, base_image=None)
        bare = replace(table.request, target=target, requirements=(), preinstalled=None)
        return {
            "columns": [
                {"name": name, "requirements": [item.text for item in requirements]}
                for name, requirements in table.columns.items()
            ],
            "limits": [requirement.text for requirement in table.limits],
            "options": list(request_arguments(bare)),
            "groups": [value for _, value in self._groups.values()],
            "facts": [value for _, value in self._facts.values()],
            "cells": [value for _, value in self._cells.values()],
            "rows": listed,
            "locked": locked,
        }

    def _is_locked(self, row: TableRow) -> bool:
        if (row.torch, row.python) != tuple(map(self._locked.get, ("torch", "python"))):
            return False
        image = self._locked.get("base-image")
        return image in row.images if image else not row.images

    def _row(self, row: TableRow) -> list[Any]:
        group = _number(
            self._groups,
            (row.images, row.rocm, row.verdict, _is_from_commit(row)),
            {
                "heading": self._heading(row),
                "images": row.images,
                "risk": row.verdict == "at-own-risk",
            },
        )
        cells = [self._cell(row, row.cells[name]) for name in self._table.columns]
        return [group, row.torch, row.python, *cells]

    def _heading(self, row: TableRow) -> str:
        if self._table.request.target.backend == "cpu":
            return "CPU"
        torch = ", torch from a commit, not a release" if _is_from_commit(row) else ""
        return f"ROCm {row.rocm}{torch}" + ("" if row.images else NO_IMAGE)

    def _cell(self, row: TableRow, cell: Cell) -> int:
        pick = cell.pick
        if pick is None:
            return _number(self._cells, cell.refused, {"text": cell.refused, "state": "impossible"})
        state = self._state(row, pick)
        texts = [(fact.text, fact.status, fact.source, fact.note) for fact in pick.facts]
        facts = [_number(self._facts, fact, list(fact)) for fact in texts]
        document = {
            "name": pick.name,
            "text": cell.version,
            "state": state,
            "support": pick.support,
            "risk": pick.verdict == "at-own-risk",
            "facts": facts,
        }
        key = (pick.name, pick.key, pick.origin, pick.support, state, tuple(fact.text for fact in pick.facts))
        return _number(self._cells, key, document)

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


def _is_from_commit(row: TableRow) -> bool:
    return "+git" in row.torch or Version(row.torch).is_prerelease


def _number(pool: _Pool, key: Hashable, value: object) -> int:
    return pool.setdefault(key, (len(pool), value))[0]


def table_report(table: Table, rows: Iterable[TableRow]) -> ReportPage:
    """Return a page with only the table."""
    target = table.request.target
    return ReportPage(
        title=f"Compatible versions: {target.site} on {target.date}",
        subtitle=subtitle_of(table),
        table=TableData(table).collect(rows),
    )


def subtitle_of(table: Table) -> str:
    """Return a line with the target of a table, its limits, and the number of facts it is computed from."""
    target = table.request.target
    parts = [f"{target.backend} {', '.join(target.gfx)}".rstrip()]
    parts += [f"kernel driver {table.driver}"] if table.driver else []
    parts += [f"only {', '.join(requirement.text for requirement in table.limits)}"] if table.limits else []
    facts = sum(1 for _ in table.catalog.rows())
    return f"{'; '.join(parts)}; from {facts} facts."
