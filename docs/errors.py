"""docs/reference/errors, generated from the error classes and docs/errors.toml."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tomllib
from pathlib import Path

from resolver.errors import IDS, MatrixError

HERE = Path(__file__).parent
_MEANINGS = {
    1: "the answer is no",
    2: "bad usage or input",
    3: "something is missing on this machine",
    70: "a bug",
    130: "interrupted",
}
_HEAD = """# Error ids

Every error has an id, which does not change between versions. It is in the [JSON](../json.md) of an error.

"""


def error_classes() -> dict[str, type[MatrixError]]:
    """Return the error class of each id; several ids belong to `MatrixError`."""
    for package in ("resolver", "builders", "matrix"):
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    classes = dict.fromkeys(IDS, MatrixError)
    pending: list[type[MatrixError]] = [MatrixError]
    while pending:
        error = pending.pop(0)
        if "id" in vars(error):
            classes[error.id] = error
        pending += error.__subclasses__()
    return dict(sorted(classes.items()))


def pages() -> dict[Path, str]:
    """Return the overview, and one page per id."""
    advice = tomllib.loads((HERE / "errors.toml").read_text(encoding="utf-8"))
    errors = error_classes()
    if missing := errors.keys() - advice.keys():
        sys.exit(f"docs/errors.toml has no advice for: {', '.join(sorted(missing))}")
    folder = HERE / "reference" / "errors"
    rows = [
        f"| [{name}]({name}.md) | {error.exit_code} | {_meaning(name, error)} |"
        for name, error in errors.items()
    ]
    table = "\n".join(["| id | exit code | meaning |", "| --- | ---: | --- |", *rows]) + "\n"
    return {
        folder / "README.md": _HEAD + table,
        **{folder / f"{name}.md": _page(name, error, advice[name]["then"]) for name, error in errors.items()},
    }


def _meaning(name: str, error: type[MatrixError]) -> str:
    if error is MatrixError:
        return IDS.get(name, "The operation failed.")
    return str(error.__doc__).partition("\n\n")[0]


def _page(name: str, error: type[MatrixError], advice: str) -> str:
    code = f"{error.exit_code} ({_MEANINGS[error.exit_code]})"
    return f"# {name}\n\n{_meaning(name, error)} Exit code: {code}.\n\n## What to do\n\n{advice.strip()}\n"
