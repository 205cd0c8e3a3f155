"""What pip may install on the target: the part that depends on the patch release of Python."""

from __future__ import annotations

from typing import Any

from resolver.environment import Environment
from resolver.facts.catalog import Catalog
from resolver.model import Resolution
from resolver.resolve import resolve
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

NEWER = FakeRelease(requires_python=">=3.12.4")


def resolved(catalog: Catalog, projects: dict[str, dict[str, Any]]) -> Resolution:
    answer = resolve(catalog, ask(catalog, "lib python==3.12"), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    return answer


def test_release_for_every_patch_release_is_chosen(catalog: Catalog) -> None:
    answer = resolved(catalog, {"lib": {"2.0": NEWER, "1.0": []}})
    assert answer.version_of("lib") == "1.0"


def test_newer_patch_release_is_assumed_only_without_other_solution(catalog: Catalog) -> None:
    answer = resolved(catalog, {"lib": {"2.0": NEWER}})
    assert answer.version_of("lib") == "2.0"
    (warning,) = answer.warnings[-1:]
    assert warning.startswith("lib 2.0 requires Python >=3.12.4, so not every patch release")


def test_requirement_of_some_patch_release_counts(catalog: Catalog) -> None:
    lib = ["old ; python_full_version < '3.12.4'", "new ; python_full_version >= '3.12.4'"]
    answer = resolved(catalog, {"lib": {"1.0": lib}, "old": {"1.0": []}, "new": {"1.0": []}})
    assert {"old", "new"} <= {pick.name for pick in answer.picks}


def test_requires_python_of_all_or_some_patch_releases() -> None:
    every, some = Environment("3.12"), Environment("3.12", any_patch=True)
    for text, by_every, by_some in (
        (">=3.12", True, True),
        (">=3.12.4", False, True),
        ("<3.12.4", False, True),
        (">=3.13", False, False),
        ("!=3.12.4", True, True),
        ("nonsense", True, True),
    ):
        assert (every.allows_python(text), some.allows_python(text)) == (by_every, by_some)
