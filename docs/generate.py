"""Write the parts of the documentation that are generated from the catalog; ``--check`` only compares.

In ``docs/reference/catalog.md`` the counts of rows between two markers are generated,
``docs/reference/golden.md`` and ``docs/reference/diagnosis.md`` completely.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from diagnosing import page as diagnosis_page

from resolver.facts.loading import load
from resolver.facts.schema import KINDS
from resolver.proven import judge

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"
BEGIN, END = "<!-- counts: generated -->\n", "<!-- end of counts -->\n"
STATUSES = ("documented", "observed", "inferred")


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
        "Sets of versions that were run together. Generated from the catalog by `nox -s docs`.",
        "Each set is resolved with exactly its versions and variants, for its site and day, with",
        "`--support observed`. Tier 1: everything in the set is recorded and published, so it must",
        "resolve. Tier 2: the set is old, partly unknown, has a nightly or custom build of torch, or is",
        "from another machine; its result is only reported.",
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


def documents() -> dict[Path, str]:
    """Return the path and the current text of every generated document."""
    catalog = load()
    page = REFERENCE / "catalog.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        page: f"{before}{BEGIN}{counts(catalog)}{END}{after}",
        REFERENCE / "golden.md": golden(catalog),
        REFERENCE / "diagnosis.md": diagnosis_page(),
    }


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
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
