"""Imports inside functions: heavy libraries, and whatever would slow the start of every command."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("resolver", "builders", "matrix")
    for path in (ROOT / package).rglob("*.py")
    if path.parent.name != "probe" or path.stem not in {"payload", "child"}  # separate programs
}
HEAVY = {
    "auditwheel", "elftools", "installer", "jinja2", "markupsafe", "networkx", "packageurl",
    "pip_requirements_parser", "re2", "requests", "rich", "ruamel", "tomli_w", "tomlkit", "wheel",
}  # fmt: skip
DEFERRED = {
    "builders.audit.runtime_libraries", "builders.audit.wheel_audit", "builders.building.rebuild",
    "builders.building.records", "builders.building.task", "builders.environments.layers",
    "builders.environments.wheelhouse", "builders.gpu.content", "builders.index",
    "builders.index_client.html_page", "builders.index_client.metadata", "builders.network.download",
    "builders.scheduling.local", "builders.sources.fetch", "builders.sources.source", "concurrent.futures",
    "packaging.requirements", "packaging.specifiers",
}  # fmt: skip
"""Modules with many imports that `index list`, and `build-wheels` without anything to build, do not use.

`explain` reads an index only for what is built: it takes 120 million instructions to import.

The metadata of a wheel are read by `packaging.metadata`, with five modules of the standard library's email.
Pages in HTML, which few indexes still have, are read with eight regular expressions, which take two million
instructions to compile. Pages in the cache do not need them.
"""
START_UP = """
import sys
from matrix.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


class Import(NamedTuple):
    name: str
    line: int
    in_function: bool
    of_type: bool


def imports(node: ast.AST, *, in_function: bool = False, of_type: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        of_types = of_type or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, in_function, of_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            full = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name for name in full if name in FILES] or [child.module]
            yield from (Import(name, child.lineno, in_function, of_types) for name in names)
        within = in_function or isinstance(child, ast.FunctionDef)
        yield from imports(child, in_function=within, of_type=of_types)


@cache
def all_imports() -> dict[str, list[Import]]:
    return {name: list(imports(ast.parse(path.read_text()))) for name, path in FILES.items()}


@cache
def is_heavy(module: str) -> bool:
    """Return whether a module is part of a heavy library, or imports one when it is imported."""
    known: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name.partition(".")[0] in HEAVY:
            return True
        if name in FILES and name not in known:
            known.add(name)
            pending += [
                name.rpartition(".")[0],
                *(row.name for row in all_imports()[name] if not (row.in_function or row.of_type)),
            ]
    return False


def test_functions_import_heavy_libraries_only_except_at_start_up(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    options = ["torch", "apex", "deepspeed", "flash-attn", "bitsandbytes"]
    options += ["--no-lock", "-q", "--index-url", (tmp_path / "simple").as_uri()]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", START_UP, "resolve", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    start_up = {"matrix.__main__", *done.stderr.split()} & FILES.keys()
    assert {"matrix.cli", "resolver.solving.session"} <= start_up
    others = [
        f"{FILES[module]}:{row.line}: {row.name}"
        for module in FILES.keys() - start_up
        for row in all_imports()[module]
        if row.in_function and row.name not in DEFERRED and not is_heavy(row.name)
    ]
    assert others == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports of types count, and those inside functions."""
    arrows: networkx.DiGraph[str] = networkx.DiGraph(
        (module, row.name) for module, rows in all_imports().items() for row in rows
    )
    circles = [sorted(found) for found in networkx.strongly_connected_components(arrows) if len(found) > 1]
    assert circles == []
