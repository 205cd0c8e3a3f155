"""What is decided when: late parts of the platform, Python and its patch releases; what suggestions keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import resolver.answers.confirmation
from resolver.answers.confirmation import confirm
from resolver.answers.resolve import resolve
from resolver.errors import InternalError, UsageError
from resolver.facts import schema
from resolver.facts.catalog import Catalog
from resolver.indexes import ProjectRelease
from resolver.model import Conflict, Resolution
from resolver.solving.rules import Judged, RuleContext, judge
from tests.resolver.open_universe import open_universe
from tests.resolver.solve_helpers import ask
from tests.resolver.test_open_world import Projects, answer, chosen, versions
from tests.resolver.test_preferences import DYNAMIC, STATIC, _catalog, _request, with_python
from tests.support.indexes import FakeIndexes, FakeRelease


def test_python_that_the_site_advises_is_decided_before_requested_releases() -> None:
    advice = schema.SiteAdvice(
        site="here", on="python", versions=("==3.11",), status="documented", source="made up for a test"
    )
    newer = FakeRelease(requires_python=">=3.12")
    indexes = FakeIndexes({"lib": {"1": [], "2": newer}, "only": {"1": newer}})
    found = resolve(_catalog(advice), _request("lib"), indexes)
    assert isinstance(found, Resolution)
    assert (found.version_of("python"), found.version_of("lib")) == ("3.11", "1")
    found = resolve(_catalog(advice), _request("lib", "only"), indexes)
    assert isinstance(found, Resolution)
    assert (found.version_of("python"), found.version_of("lib")) == ("3.12", "2")


@pytest.mark.parametrize("name", ["torch", "torchvision", "torchaudio", "vllm"])
def test_late_torch_has_the_platform_that_a_requested_torch_has(name: str, catalog: Catalog) -> None:
    day = "2026-11-01"
    direct = resolve(catalog, ask(catalog, f"{name} python==3.12", day=day), FakeIndexes({}))
    indexes = FakeIndexes({"user": {"1": [name]}})
    late = resolve(catalog, ask(catalog, "user python==3.12", day=day), indexes)
    assert isinstance(direct, Resolution)
    assert isinstance(late, Resolution)
    own = {pick.name: pick.key for pick in direct.picks}
    assert {pick.name: pick.key for pick in late.picks if pick.name != "user"} == own


@pytest.mark.parametrize("source", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("numbers", [("1", "2"), ("1", "2", "3", "4", "5")])
def test_older_python_avoids_source_build_of_a_dependency(
    source: FakeRelease, numbers: Sequence[str]
) -> None:
    release = replace(source, wheels=["cp311-cp311-manylinux_2_28_x86_64"])
    projects: Projects = {"lib": dict.fromkeys(numbers, release), "user": {"1": ["lib"]}}
    assert with_python(projects, "user")["python"] == "3.11"


def test_to_prefer_wheels_only_releases_that_are_left_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pydantic, which pins pydantic-core: that has 10,000 files."""
    judged: list[str] = []

    def recorded(release: ProjectRelease, context: RuleContext) -> Judged:
        judged.extend(file.name for file in release.files if file.name.startswith("core-"))
        return judge(release, context)

    monkeypatch.setattr("resolver.solving.projects.judge", recorded)
    core = FakeRelease(sdist=True, wheels=["cp312-cp312-manylinux_2_28_x86_64"])
    projects: Projects = {"user": {"1": ["core==3"]}, "core": dict.fromkeys("12345", core)}
    assert chosen(projects, "user", pythons=("3.12", "3.11")) == {"user": "1", "core": "3"}
    assert {name.split("-")[1].removesuffix(".tar.gz") for name in judged} == {"3"}


@pytest.mark.parametrize("given", ["3.13.1", "3.13.2", "3.13.11"])
def test_any_patch_release_may_be_given(given: str) -> None:
    projects = {"lib": versions("1", requires_python=">=3.13")}
    assert chosen(projects, "lib", f"python=={given}", pythons=("3.14", "3.13")) == {"lib": "1"}


@pytest.mark.parametrize("invalid", ["pytz (>dev)", "pytz>>1", "-r file.txt"])
def test_many_releases_with_invalid_requirements_do_not_hide_older_ones(invalid: str) -> None:
    """As celery 4.4.0 to 4.4.7, which require ``pytz (>dev)``: their metadata can be read."""
    projects: Projects = {
        "celery": {"4.3": [], **versions(*(f"4.4.{n}" for n in range(8)), requires=[invalid])}
    }
    assert chosen(projects, "celery<5") == {"celery": "4.3"}


def test_order_of_request_does_not_change_explanation() -> None:
    projects: Projects = {"c": {"1": ["b"]}, "b": {"1": FakeRelease(yanked="broken")}}
    texts = []
    for order in (["c", "c[x]"], ["c[x]", "c"]):
        found = answer(projects, *order)
        assert isinstance(found, Conflict)
        texts.append(sorted(item.text for item in found.core))
    assert texts[0] == texts[1]


def test_suggestion_keeps_extras() -> None:
    with_x = FakeRelease(extras=["x"])
    projects: Projects = {"a": {"1": replace(with_x, requires_python="<3.12"), "2": with_x}}
    found = answer(projects, "a[x]==1")
    assert isinstance(found, Conflict)
    assert found.suggestions
    for suggestion in found.suggestions:
        assert [requirement.extras for requirement in suggestion.request.requirements] == [("x",)]


def test_confirmation_finds_a_version_whose_own_requirements_differ() -> None:
    """The metadata that was read for a release must be that of the version in the lock."""
    tried = 0
    for seed in range(40):
        universe = open_universe(random.Random(seed), projects=6, releases=5)
        confirmed: list[tuple[Any, ...]] = []
        with pytest.MonkeyPatch.context() as patch, suppress(UsageError):
            patch.setattr(resolver.answers.confirmation, "confirm", lambda *args: confirmed.append(args))  # noqa: B023
            resolve(universe.catalog, universe.request, universe.indexes())
        for lock, *rest in confirmed:
            for pick in lock.distributions:
                for version in universe.projects[pick.name].keys() - {pick.version}:
                    tried += 1
                    picks = (replace(one, version=version) if one == pick else one for one in lock.picks)
                    with pytest.raises(InternalError, match="not confirmed"):
                        confirm(replace(lock, picks=tuple(picks)), *rest)
    assert tried > 50
