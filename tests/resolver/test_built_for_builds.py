"""Build requirements that only other recipes can build: they are resolved without being requested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resolver.answers.resolve import resolve
from resolver.errors import CycleError
from resolver.facts.catalog import Catalog, load
from resolver.model import Conflict, Edge, Resolution
from tests.resolver.solve_helpers import ask

Overlay = Callable[[str], Path]
SEEN = 'status = "observed"\nsource = "a test"\n'


def package(name: str, *versions: str, recipe: str = 'backend = "rocm"') -> str:
    rows = [f'[[package]]\nname = "{name}"\ntitle = "A"\nimport-name = "{name}"\n{SEEN}']
    for version in versions:
        sdist = f'{{ file = "{name}-{version}.tar.gz", sha256 = "{"ab" * 32}" }}'
        rows.append(f'[[release]]\npackage = "{name}"\nversion = "{version}"\nsdist = {sdist}\n{SEEN}')
    return "".join([*rows, f'[[recipe]]\npackage = "{name}"\n{recipe}\n{SEEN}'])


def user_of(requirement: str) -> str:
    return package("user", "3.0", recipe=f'backend = "rocm"\nundeclared = ["{requirement}"]')


def resolved(catalog: Catalog, requirements: str = "user") -> Resolution | Conflict:
    return resolve(catalog, ask(catalog, requirements))


def test_build_requirement_that_only_a_recipe_builds_is_resolved(overlay: Overlay) -> None:
    answer = resolved(load([overlay(user_of("tool<2") + package("tool", "1.0", "2.0"))]))
    assert isinstance(answer, Resolution)
    pick = answer.pick("tool")
    assert pick is not None
    assert (pick.version, pick.origin) == ("1.0", "build")
    edges = [edge for edge in answer.edges if edge.object == "tool"]
    assert edges == [Edge("user", "tool", "build", declared=False)]
    names = [name for group in answer.order for name in group]
    assert names.index("tool") < names.index("user")


def test_build_requirements_can_require_others_in_turn(overlay: Overlay) -> None:
    tool = package("tool", "1.0", recipe='backend = "rocm"\ndeclared = ["gadget"]')
    answer = resolved(load([overlay(user_of("tool") + tool + package("gadget", "1.0"))]))
    assert isinstance(answer, Resolution)
    assert {"user", "tool", "gadget"} <= {pick.name for pick in answer.built()}


def test_build_requirement_limits_the_request(overlay: Overlay) -> None:
    catalog = load([overlay(user_of("tool<2") + package("tool", "1.0", "2.0"))])
    answer = resolved(catalog, "user tool>=2")
    assert isinstance(answer, Conflict)
    assert "user 3.0 requires tool<2 to build" in [row.text for row in answer.core]


def test_recipe_that_requires_its_own_package_is_a_cycle(overlay: Overlay) -> None:
    with pytest.raises(CycleError, match="user -> user"):
        resolved(load([overlay(user_of("user>1"))]))


@pytest.mark.parametrize(
    ("requirement", "rows"),
    [
        ("tool", package("tool", "1.0", recipe='backend = "cpu"')),
        (
            "tool",
            f'{package("tool", "1.0")}[[release]]\npackage = "tool"\nversion = "2.0"\npypi = true\n{SEEN}',
        ),
        ("tool; python_version<'3.9'", package("tool", "1.0")),
    ],
    ids=["no recipe for the backend", "published", "marker"],
)
def test_other_build_requirements_are_left_to_pip(overlay: Overlay, requirement: str, rows: str) -> None:
    answer = resolved(load([overlay(user_of(requirement) + rows)]))
    assert isinstance(answer, Resolution)
    assert answer.pick("tool") is None
