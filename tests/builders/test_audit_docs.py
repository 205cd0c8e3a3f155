"""Every finding that an audit can give has its row in the docs, and no row tells of another."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import builders.audit

PACKAGE = Path(builders.audit.__file__).parent
DOCS = PACKAGE.parents[1] / "docs" / "audit.md"
ID = re.compile(r"[a-z]+(?:-[a-z]+)+|link")
MAKERS = {"Finding", "Problem", "_say"}


def given() -> dict[str, str]:
    """Collect what is passed as an id, or is chosen to be, and where."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in MAKERS and node.args:
                    texts = [node.args[0]]
            elif isinstance(node, ast.Tuple) and path.name in {"checks.py", "needs.py"} and node.elts:
                texts = [node.elts[0]]  # a table of ids that one call goes through
            elif isinstance(node, ast.IfExp):
                texts = [node.body, node.orelse]
            for text in texts:
                if isinstance(text, ast.Constant) and ID.fullmatch(str(text.value)):
                    found[str(text.value)] = path.name
    return found


def test_every_finding_is_explained() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (error|warning|info) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    explained = [name for name, _ in rows]
    assert len(explained) == len(set(explained))
    assert set(explained) == set(given())
