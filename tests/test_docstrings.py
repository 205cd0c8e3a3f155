"""The examples in the docstrings of all packages."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest


@pytest.mark.parametrize(
    ("package", "examples"),
    [
        ("resolver", {"errors", "answers.resolution", "compiling.problem", "versions"}),
        ("builders", {"audit.platform_tags", "network.git"}),
        ("matrix", {"command_line.options", "show.render"}),
    ],
)
def test_docstring_examples_are_correct(package: str, examples: set[str]) -> None:
    path = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
    having = [name for name in names if ">>> " in inspect.getsource(importlib.import_module(name))]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in having}
    assert {name for name, result in results.items() if result.failed} == set()
    assert {name for name, result in results.items() if result.attempted} >= {
        f"{package}.{name}" for name in examples
    }
