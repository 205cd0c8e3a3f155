"""The examples of the pages have the output that the pages show."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
WITH_EXAMPLES = sorted(
    str(page.relative_to(PROJECT))
    for page in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    if "\n```console run" in page.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def examples() -> Iterator[Any]:
    """Return the module of the documentation that runs examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "docs")
        yield importlib.import_module("run_examples")
        sys.modules.pop("run_examples", None)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_page_shows_what_its_commands_print(page: str, examples: Any) -> None:
    old = (PROJECT / page).read_text(encoding="utf-8")
    new = examples.updated(old)
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    assert examples.same(old, new), "\n".join(["run: nox -s examples", *lines])


def test_output_is_replaced_shortened_and_compared_without_times(examples: Any) -> None:
    page = "# Page\n\n```console run head=1\n$ echo one; echo two\nold\n$ pwd\n```\nText.\n"
    new = examples.updated(page)
    assert new == (
        "# Page\n\n```console run head=1\n$ echo one; echo two\none\n...\n$ pwd\n/home/me/work\n```\nText.\n"
    )
    assert not examples.same(page, new)
    assert examples.same("built in 3.2 s", "built in 11 s")
    assert not examples.same("built 3 wheels", "built 4 wheels")
