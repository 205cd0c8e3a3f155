"""Files that pip may install on the target, depending on the patch release of Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags

from resolver.answers.resolve import resolve
from resolver.environment import Environment, platform_tags
from resolver.facts.catalog import Catalog
from resolver.model import Resolution
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
    assert warning.startswith(
        "lib 2.0 requires Python >=3.12.4, so some patch releases of the Python in the lock cannot"
    )


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


VARIABLES = ("python_version", "python_full_version", "sys_platform", "os_name", "platform_system", "extra")
VALUES = ("3.9", "3.12", "3.12.4", "3.13", "linux", "win32", "posix", "Linux", "dev", "3.*")


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    quote = draw(st.sampled_from("\"'"))
    name, value = draw(st.sampled_from(VARIABLES)), draw(st.sampled_from(VALUES))
    operator = draw(st.sampled_from(("==", "!=", "<", "<=", ">", ">=", "in", "not in")))
    return f"{name} {operator} {quote}{value}{quote}"


MARKERS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda text: f"({text})"),
        st.builds("{} {} {}".format, inner, st.sampled_from(("and", "or")), inner),
    ),
    max_leaves=5,
)


@given(MARKERS, st.sampled_from(("", "dev")))
def test_markers_apply_as_in_packaging(text: str, extra: str) -> None:
    environment, marker = Environment("3.12"), Marker(text)

    def expected(full: str) -> bool:
        values = {"python_version": "3.12", "python_full_version": full, "sys_platform": "linux"}
        return marker.evaluate({**values, "os_name": "posix", "platform_system": "Linux", "extra": extra})

    try:
        applies = environment.applies(text, extra)
    except ValueError:
        return  # such as an order of texts, which is not defined
    assert applies == any(map(expected, ("3.12.0", "3.12.99")))


@pytest.mark.parametrize(
    "text",
    [
        "os_name == 'posix' and",
        "or os_name == 'posix'",
        "os_name == 'posix' os_name == 'posix'",
        "os_name == 'posix' and or os_name == 'posix'",
        "(os_name == 'posix'",
        "os_name == 'posix')",
        "os_name == 'posix' ()",
        "os_name = 'posix'",
        "os_name == 'posix",
    ],
)
def test_invalid_marker_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="marker"):
        Environment("3.12").applies(text)


@pytest.mark.parametrize("glibc", ["2.17", "2.39"])
@pytest.mark.parametrize("python", ["3.9", "3.13"])
def test_wheels_rank_in_the_order_of_packaging(python: str, glibc: str) -> None:
    major, minor = map(int, python.split("."))
    interpreter, platforms = f"cp{major}{minor}", platform_tags(glibc)
    tags = [
        *cpython_tags((major, minor), [interpreter], platforms),
        *compatible_tags((major, minor), interpreter, platforms),
    ]
    ordered = list(dict.fromkeys(map(str, tags)))
    environment = Environment(python, glibc)
    ranks = {tag: environment.rank(tag) for tag in ordered}
    assert sorted(ordered, key=lambda tag: ranks[tag] or 0) == ordered
    assert len({*ranks.values()} - {None}) == len(ordered)
    assert environment.rank(f"{interpreter}-{interpreter}-manylinux_2_40_x86_64") is None
    assert environment.rank("cp27-none-any") is None
