"""Write the parts of the documentation that are generated from the program; ``--check`` only compares.

The man pages, the text of ``matrix --help`` and, in ``docs/reference``, ``golden.md``, ``diagnosis.md``,
``errors`` and ``schemas`` are completely generated. Four parts of other pages are generated: the numbers of
rows in ``catalog.md``, the options of each command that its page does not mention, the modules in
``architecture.md``, and the needs in ``what-was-run.md``.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import command_line
import documents as json_documents
import errors
import needs
from diagnosing import page as diagnosis_page

from matrix.cli import make_parser
from matrix.commands.catalog import STATUSES
from resolver.answers.proven import judge
from resolver.facts.catalog import load
from resolver.facts.schema import KINDS

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog

HERE = Path(__file__).parent
PACKAGES = ("resolver", "builders", "matrix")
ARCHITECTURE = HERE / "development" / "architecture.md"
REFERENCE = HERE / "reference"
MAN = HERE / "man"
DESCRIBED = {
    "target": "target-options.md",
    "inputs": "resolve.md#inputs",
    "package indexes": "resolve.md#inputs",
}
"""The page that describes each group of options of several commands."""


def counts(catalog: Catalog) -> str:
    """Return a table of the number of rows of each kind by status."""
    lines = [f"| kind | rows | {' | '.join(STATUSES)} |", "| --- | ---: | ---: | ---: | ---: |"]
    total: Counter[str] = Counter()
    for kind in KINDS:
        count = Counter(row.status for row in catalog.of_kind(kind))
        total += count
        lines.append(_count_line(kind.replace("_", "-"), count))
    return "\n".join([*lines, _count_line("all", total)]) + "\n"


def _count_line(kind: str, count: Counter[str]) -> str:
    return f"| {kind} | {count.total()} | {' | '.join(str(count[status]) for status in STATUSES)} |"


def golden(catalog: Catalog) -> str:
    """Return a page with the result of resolving every proven set for its site and day."""
    lines = [
        "# Proven sets",
        "",
        "A proven set consists of versions that were run together. `nox -s docs` generates this page from",
        "the catalog. Each set is resolved with exactly its versions and variants, for its site and day,",
        "Tier 1: everything in the set is recorded and published, so it must",
        "resolve. Tier 2: the set is old, partly unknown, has a nightly or custom build of torch, or is",
        "from another machine, so its result is only reported.",
        "",
        "| tier | set | site, day | result | details |",
        "| ---: | --- | --- | --- | --- |",
    ]
    for proven in sorted(catalog.proven.values(), key=lambda row: (row.tier, str(row.date), row.id)):
        judgement = judge(catalog, proven)
        details = f"{len(proven.picks)} picks"
        if judgement.unknown:
            details = f"not in the catalog: {', '.join(judgement.unknown)}"
        elif judgement.core:
            details = "; ".join(item.text for item in judgement.core)
        details += f". Left out: {'; '.join(proven.left_out)}" if proven.left_out else ""
        where = f"{proven.site or 'any'}, {proven.date or 'day not recorded'}"
        lines.append(f"| {proven.tier} | {proven.id} | {where} | {judgement.verdict} | {details} |")
    return "\n".join(lines) + "\n"


def options(page: str, command: command_line.Command, common: str) -> str:
    """Return the page of a command with the options that neither it nor the page of all commands mentions."""
    text = _between(page, "options", "")
    skipped = frozenset(group for group, link in DESCRIBED.items() if link in page)
    return _between(page, "options", command_line.other_options(command, text + common, skipped))


def overview(page: str, listed: list[command_line.Command]) -> str:
    """Return the page of all commands with their summaries."""
    rows = (f"| [{command.name}]({command.name}.md) | {command.summary} |" for command in listed)
    table = "\n".join(["| command | |", "| --- | --- |", *rows]) + "\n"
    return _between(page, "commands", table)


def schema_list(page: str) -> str:
    """Return the page about JSON with a link to every schema."""
    links = (f"[{name}](schemas/{name}.json)" for name in json_documents.DOCUMENTS)
    return _between(page, "schemas", "JSON Schemas: " + ",\n".join(links) + ".\n")


def module_list(page: str) -> str:
    """Return the page about the architecture with a list of all modules, each with the summary it states."""
    lines: list[str] = []
    for path in sorted(
        (path for package in PACKAGES for path in (HERE.parent / package).rglob("*.py")),
        key=lambda path: (PACKAGES.index(path.relative_to(HERE.parent).parts[0]), path.parent, path.name),
    ):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary = docstring.partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        folder = path.parent.relative_to(HERE.parent)
        is_folder = path.name == "__init__.py"
        lines.append(f"\n**`{folder}/`** {summary}\n" if is_folder else f"- `{path.name}`: {summary}")
    return _between(page, "modules", "\n".join(lines).lstrip() + "\n")


def _between(page: str, name: str, text: str) -> str:
    """Replace the text between the two markers of that name."""
    begin, end = f"<!-- {name}: generated -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{text}{end}{after}"


def documents() -> dict[Path, str]:
    """Return the path and the current text of every generated document."""
    os.environ["COLUMNS"] = "80"
    catalog = load()
    listed = command_line.read_commands()
    folder = REFERENCE / "commands"
    common = (folder / "README.md").read_text(encoding="utf-8")
    page = REFERENCE / "catalog.md"
    pages = {
        REFERENCE / "json.md": schema_list((REFERENCE / "json.md").read_text(encoding="utf-8")),
        **errors.pages(),
        **json_documents.schemas(),
        ARCHITECTURE: module_list(ARCHITECTURE.read_text(encoding="utf-8")),
        page: _between(page.read_text(encoding="utf-8"), "counts", counts(catalog)),
        REFERENCE / "golden.md": golden(catalog),
        REFERENCE / "diagnosis.md": diagnosis_page(),
        folder / "README.md": overview(common, listed),
        MAN / "matrix.1": command_line.overview_page(listed),
        HERE.parent / "matrix" / "help.txt": make_parser().format_help(),
    }
    page = HERE / "explanation" / "what-was-run.md"
    pages[page] = _between(page.read_text(encoding="utf-8"), "needs", needs.table())
    for command in listed:
        page = folder / f"{command.name}.md"
        pages[page] = options(page.read_text(encoding="utf-8"), command, common)
        pages[MAN / f"matrix-{command.name}.1"] = command_line.man_page(command)
    return pages


def main() -> int:
    """Write the documents, or with ``--check`` list those that are out of date."""
    stale = {
        path: text for path, text in documents().items() if not path.exists() or path.read_text() != text
    }
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.name} is out of date; run: nox -s docs")
        return 1 if stale else 0
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
