"""docs/reference/audit.md has one row for each finding of an audit, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import builders.audit

PACKAGE = Path(builders.audit.__file__).parent
DOCS = PACKAGE.parents[1] / "docs" / "reference" / "audit.md"
ID = re.compile(r"[a-z]+(?:-[a-z]+)+|link")
MAKERS = {"Finding", "_problem", "_skip_bundle", "damaged"}


def ids_in_code() -> dict[str, str]:
    """Return each id that is passed or chosen in the code, and its module."""
    ids: dict[str, str] = {}
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            ids_: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in MAKERS and node.args:
                    ids_ = [node.args[0]]
            elif isinstance(node, ast.Tuple) and path.name == "libraries.py" and node.elts:
                ids_ = [node.elts[0]]  # a table of ids that one call goes through
            elif isinstance(node, ast.IfExp):
                ids_ = [node.body, node.orelse]
            for text in ids_:
                if isinstance(text, ast.Constant) and ID.fullmatch(str(text.value)):
                    ids[str(text.value)] = path.name
    return ids


def test_docs_have_one_row_per_finding() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (error|warning|info) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = [name for name, _ in rows]
    assert len(documented) == len(set(documented))
    assert set(documented) == set(ids_in_code())
