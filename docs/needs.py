"""The table of needs in the page about what was run: from the needs, and the tests that each names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]
NEEDS = PROJECT / "docs" / "development" / "needs.md"
_PROOF = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_CELLS = re.compile(r" (?<!\\)\| ")
_STAND_IN = re.compile(r"\b(stand[- ]?ins?|stands? in|fakes?)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z`])")
_PLACES = {"integration": "CI (integration)", "long": "`nox -s long`", "": "CI"}


def table() -> str:
    """Return a row for each need: how it is met, where that is run, by which tests, and what stands in."""
    lines = ["| need | how | run | stand-ins | tests |", "| --- | --- | --- | --- | --- |"]
    for line in NEEDS.read_text(encoding="utf-8").splitlines():
        cells = _CELLS.split(line.removeprefix("| ").removesuffix(" |"))
        if not line.startswith("| ") or cells[0] in {"need", "---"}:
            continue
        need, how, proof = cells
        tests = _PROOF.findall(proof)
        seen = [_of_test(*test) for test in tests]
        places = sorted({place for where, _ in seen for place in where}, key=[*_PLACES.values()].index)
        texts = dict.fromkeys(text for _, said in seen for text in said)
        names = ", ".join(f"`{name}`" for _, name in tests)
        where = "; ".join(places) or f"**not run**: {proof.removeprefix('none: ')}"
        lines.append(f"| {need} | {how} | {where} | {' '.join(texts)} | {names or 'none'} |")
    return "\n".join(lines) + "\n"


def _of_test(file: str, name: str) -> tuple[set[str], list[str]]:
    """Return where a test is run, and the sentences that say what stands in for something.

    A test of which only some cases are long is run at both places.
    """
    module = _module(file)
    test = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    own = next((node.value for node in module.body if _is_marks(node)), None)
    of_all = {*_marks(own), *(mark for node in test.decorator_list for mark in _marks(node)[:1])}
    places = {_PLACES["long" if "long" in of_all else "integration" if "integration" in of_all else ""]}
    if any("long" in _marks(node) for node in test.decorator_list):
        places.add(_PLACES["long"])
    docs = (ast.get_docstring(node) or "" for node in (module, test))
    sentences = (" ".join(text.split()) for doc in docs for text in _SENTENCE.split(doc))
    return places, [
        text.replace("|", "\\|").replace("``", "`") for text in sentences if _STAND_IN.search(text)
    ]


@cache
def _module(file: str) -> ast.Module:
    return ast.parse((PROJECT / file).read_text(encoding="utf-8"))


def _is_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _marks(node: ast.expr | None) -> list[str]:
    return re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node)) if node else []
