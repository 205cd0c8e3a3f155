"""The HTML page: a Jinja2 template with the styles, scripts and data in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.show.included_json import InspectDocument
    from resolver.model import Conflict

_FOLDER = Path(__file__).parent
_TEMPLATES = _FOLDER / "templates"
VENDORED = _FOLDER / "vendored"
"""The directory into which `hatch_build.py` writes the JavaScript libraries."""
_SOURCE_MAP = re.compile(r"^//[#@] sourceMappingURL=.*$|/\*[#@] sourceMappingURL=.*?\*/", re.MULTILINE)
_COMMIT_SOURCE = re.compile(r"(?:git:)?([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})(?::([^\s,()]+))?")
_URL = re.compile(r"https?://[^\s,;()<>\"']+")


class ReportPage(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a page. A section without data is left out."""

    title: str
    subtitle: str = ""
    table: dict[str, Any] | None = None
    """From `matrix.report.table_data.TableData`."""
    graph: dict[str, Any] | None = None
    """From `matrix.report.index_data.graph_data`."""
    drawing: str = ""
    """The element `svg` of `matrix.show.drawing.draw_svg`."""
    drawing_error: str = ""
    """The reason why `drawing` is empty."""
    timeline: Sequence[dict[str, Any]] = ()
    """From `matrix.report.index_data.timeline`."""
    wheels: Sequence[dict[str, Any]] = ()
    """From `matrix.report.index_data.wheels`."""
    conflicts: Sequence[Conflict] = ()
    inspections: Sequence[InspectDocument] = ()
    """Output of `matrix inspect`."""
    changes: Sequence[dict[str, Any]] = ()
    """Output of `matrix diff`, with its consequences by effect."""
    absent: Sequence[tuple[str, str]] = ()
    """The sections without data, each with the command that provides the data."""


def render_page(report: ReportPage) -> str:
    """Return a page as HTML in ASCII. It loads nothing, so it works from a file and without a network.

    Raise `EnvironmentLacksError` if this installation has no JavaScript libraries.
    """
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True)
    environment.filters["sources"] = lambda text: Markup("").join(
        Markup('<a href="{}" rel="noreferrer">{}</a>').format(url, part) if url else part
        for part, url in linked(text)
    )
    environment.filters["shell"] = shlex.join
    libraries = [library("tabulator.js")] if report.table else []
    own = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    # The scripts have non-ASCII characters only in strings and comments, where escapes are allowed.
    scripts = [text.encode("ascii", "backslashreplace").decode() for text in (*libraries, own)]
    page = environment.get_template("report.html.j2").render(
        report=report,
        drawing=Markup(report.drawing),  # noqa: S704  escaped by Graphviz
        styles=[Markup(style) for style in _styles(report)],  # noqa: S704  files of the package
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        data=Markup(script_json({"table": report.table, "graph": report.graph})),  # noqa: S704  escaped
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()


def _styles(report: ReportPage) -> list[str]:
    own = (_TEMPLATES / "report.css").read_text(encoding="utf-8")
    return [library("tabulator.css"), own] if report.table else [own]


def library(name: str) -> str:
    """Return a file of a JavaScript library, with its licence.

    Raise `EnvironmentLacksError` if the package was built without the library.
    """
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


def _digest(script: str) -> str:
    """Return the hash with which the page's content security policy allows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


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
