"""Distributions of package indexes that require distributions of the catalog, judged by brute force.

The judge tries every combination of releases. It resolves each combination's requirements on the catalog as a
closed problem. `test_judged` compares closed problems with an independent solver.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count, pairwise, product
from time import monotonic, sleep
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.version import Version

from resolver.answers import suggest
from resolver.answers.resolve import resolve
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog, load
from resolver.indexes import File, Metadata
from resolver.model import INCOMPLETE, Conflict, Resolution, Suggestion
from resolver.reporter import Reporter
from resolver.requirements import parse_requirement
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

CATALOGUED = ("torch", "torch", "torch", "apex", "deepspeed")
SPECIFIERS = {
    "torch": ("", ">=2.8", "<2.8", "==2.7.*", "!=2.9.1", "==2.5.1+rocm6.2", "<=2.4", "==2.6.0", "<1.10"),
    "apex": ("", "<1.8", ">=1.8"),
    "deepspeed": ("", "<0.16", ">=0.17"),
}
NAMES = ("a", "b", "c")
SEEDS = range(10)

Projects = dict[str, dict[str, list[str]]]


def universe(chance: random.Random) -> tuple[Projects, list[str]]:
    """Return a request, and random projects that require one another and distributions of the catalog."""

    def requirement() -> str:
        if chance.random() < 0.6:
            name = chance.choice(CATALOGUED)
            return name + chance.choice(SPECIFIERS[name])
        return chance.choice(NAMES) + chance.choice(["", "", "<2", ">=2"])

    projects = {
        name: {version: [requirement() for _ in range(chance.choice([1, 1, 2, 2]))] for version in ("1", "2")}
        for name in NAMES
    }
    return projects, ["torch", *chance.sample(NAMES, 2)]


def combinations(projects: Projects, asked: list[str]) -> Iterator[tuple[dict[str, str], frozenset[str]]]:
    """Yield the releases that fit together, each time with their requirements on the catalog."""
    for versions in product(*projects.values()):
        chosen = dict(zip(projects, versions, strict=True))
        left, reached, required = [*map(Requirement, asked)], dict[str, str](), set[str]()
        while left:
            one = left.pop()
            if one.name not in chosen:
                required.add(str(one))
            elif not one.specifier.contains(chosen[one.name]):
                break
            elif one.name not in reached:
                reached[one.name] = chosen[one.name]
                left += map(Requirement, projects[one.name][chosen[one.name]])
        else:
            yield reached, frozenset(required)


@cache
def decided(required: frozenset[str]) -> tuple[Version, Version] | None:
    """Return ROCm and torch of the best solution for requirements of the catalog; None if there is none."""
    catalog = load()
    with suppress(UsageError):  # no version of the catalog matches a requirement
        answer = resolve(catalog, ask(catalog, " ".join(sorted(required)), prefer="newest"))
        return platform(answer) if isinstance(answer, Resolution) else None
    return None


def platform(answer: Resolution) -> tuple[Version, Version]:
    return Version(answer.version_of("rocm")), Version(answer.version_of("torch"))


@pytest.mark.slow
def test_platform_is_the_best_that_any_combination_allows() -> None:
    catalog, solvable, changed = load(), 0, 0
    newest = decided(frozenset({"torch"}))
    for seed in SEEDS:
        projects, asked = universe(random.Random(seed))
        possible = {
            (versions, frozenset(reached.items()))
            for reached, required in combinations(projects, asked)
            if (versions := decided(required))
        }
        request = ask(catalog, " ".join(asked), prefer="newest")
        answer = resolve(catalog, request, FakeIndexes(projects))
        assert isinstance(answer, Resolution) == bool(possible), seed
        if isinstance(answer, Resolution):
            solvable += 1
            changed += platform(answer) != newest
            chosen = {pick.name: pick.version for pick in answer.distributions if pick.name in NAMES}
            assert (platform(answer), frozenset(chosen.items())) in possible, (seed, chosen)
            assert platform(answer) == max(best for best, _ in possible), seed
    assert solvable > len(SEEDS) // 3
    assert changed > len(SEEDS) // 5


@pytest.mark.parametrize(("limit", "rocm"), [("", "6.4"), ("<3.4", "6.3")])
def test_requirement_of_a_distribution_may_change_rocm_alone(limit: str, rocm: str) -> None:
    catalog = load()
    request = ask(catalog, "torch==2.8.0 lib python==3.12", driver="6.4", prefer="newest")
    limits = (parse_requirement(f"lib{limit}"),) if limit else ()
    projects = {"lib": {"3.4": ["torch==2.8.0+rocm6.4"], "3.3": ["torch==2.8.0+rocm6.3"]}}
    answer = resolve(catalog, replace(request, constraints=limits), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    assert (answer.version_of("torch"), platform(answer)[0].release[:2]) == (
        f"2.8.0+rocm{rocm}",
        Version(rocm).release,
    )


def test_note_names_sources_that_only_their_backends_know() -> None:
    catalog = load()
    for requested, names in (("apex lib", ("apex",)), ("lib", ())):
        answer = resolve(catalog, ask(catalog, requested), FakeIndexes({"lib": {"1": ["torch"]}}))
        assert isinstance(answer, Resolution)
        assert answer.incomplete == names
        notes = [note for note in answer.notes if note.id == INCOMPLETE]
        assert [name in note for note in notes for name in names] == [True] * len(names)
        assert len(notes) == len(names)


@pytest.mark.parametrize("projects", range(4))
def test_package_with_unlisted_releases_may_be_required_late(projects: int) -> None:
    """Its variables get their numbers after those of the projects that were met before."""
    chain = [f"p{number}" for number in range(projects)]
    requires = dict(pairwise(["a", *chain, "xformers"]))
    indexes = FakeIndexes(
        {
            **{name: {"1": [required]} for name, required in requires.items()},
            "xformers": {"0.0.32.post99": FakeRelease(wheels=(), sdist=True)},
        }
    )
    answer = resolve(load(), ask(load(), "torch a", day="2026-11-21"), indexes)
    assert isinstance(answer, Resolution), answer
    assert {"xformers", *requires} <= {pick.name for pick in answer.distributions}


@pytest.mark.parametrize(
    ("requested", "expected", "warned"),
    [
        ("lib[gpu] python==3.11", "2", False),
        ("lib[gpu] python==3.12", "1", False),
        ("lib[gpu]==2 python==3.12", "2", True),
        ("lib python==3.12", "2", False),
        ("lib[old] python==3.12", "2", False),
    ],
)
def test_extra_whose_marker_drops_what_it_is_for_is_not_met(
    requested: str, expected: str, warned: bool
) -> None:
    """But an extra may drop a backport for new Pythons."""
    drops = [
        "torch; python_version < '3.12' and extra == 'gpu'",
        "tomli; python_version < '3' and extra == 'old'",
    ]
    keeps = ["torch; extra == 'gpu'", "tomli; extra == 'old'"]
    releases = {
        "2": FakeRelease(requires=drops, extras=["gpu", "old"]),
        "1": FakeRelease(requires=keeps, extras=["gpu", "old"]),
    }
    catalog = load()
    answer = resolve(catalog, ask(catalog, requested), FakeIndexes({"lib": releases, "tomli": {"1": []}}))
    assert isinstance(answer, Resolution)
    assert answer.version_of("lib") == expected
    text = "lib 2 requires torch for the extra gpu, but not on Python 3.12."
    assert (text in answer.warnings) is warned


@pytest.mark.parametrize(
    ("extras", "requested", "named"),
    [
        (["rocm7-local", "cuda12"], "a", ["a[rocm7-local]"]),
        (["all-hip", "srt-hip", "srt"], "a", ["a[all-hip]", "a[srt-hip]"]),
        (["all-hip", "srt-hip"], "a[srt-hip]", []),
        (["cuda12", "hipster", "amdahl"], "a", []),
    ],
)
def test_extras_for_amd_gpus_are_named_if_none_is_requested(
    extras: list[str], requested: str, named: list[str]
) -> None:
    indexes = FakeIndexes({"a": {"1": FakeRelease(extras=extras)}, "b": {"1": ["a"]}})
    for text, expected in ((requested, named), ("b", [])):
        answer = resolve(load(), ask(load(), text, day="2026-11-21"), indexes)
        assert isinstance(answer, Resolution)
        said = [str(one) for one in (*answer.warnings, *answer.notes) if "AMD GPUs" in one]
        (sentence,) = said or [""]
        assert [name for name in expected if name in sentence] == expected
        assert bool(sentence) == bool(expected)
    cpu = ask(load(), requested, site="local", backend="cpu", python="3.12", glibc="2.36", day="2026-11-21")
    answer = resolve(load(), cpu, indexes)
    assert isinstance(answer, Resolution)
    assert not [one for one in answer.warnings if "AMD GPUs" in one]


@pytest.mark.parametrize("required", ["torch", "apex", "rocm"])
def test_part_of_the_platform_that_is_not_needed_in_the_end_is_left_out(required: str) -> None:
    """A release requires it, is chosen first, and then has to go."""
    projects = {"a": {"2": [required, "b"], "1": []}, "b": {"1": ["a<2"], "2": ["a<2"]}}
    answer = resolve(load(), ask(load(), "a"), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    assert {pick.name: pick.version for pick in answer.distributions} == {"a": "1"}
    assert answer.version_of("rocm") == ""


@pytest.mark.parametrize("version", ["2.9.1+rocm6.4", "2.8.0+rocm6.4"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_wheel_of_torch_on_an_index_of_the_user_counts(version: str, *, is_listed: bool) -> None:
    """It has the same name, version and label as the wheel on torch's own index."""
    wheel = FakeRelease(requires=["filelock"], wheels=["cp312-cp312-manylinux_2_28_x86_64"])
    projects = {"torch": {version: wheel}, "filelock": {"3.1": FakeRelease()}}
    indexes = FakeIndexes(projects if is_listed else {})
    answer = resolve(load(), ask(load(), f"torch=={version} python==3.12", day="2026-11-21"), indexes)
    assert isinstance(answer, Resolution), answer
    torch = next(pick for pick in answer.distributions if pick.name == "torch")
    assert [file.index for file in torch.files] == [indexes.urls[0]] * is_listed
    assert ("filelock" in {pick.name for pick in answer.distributions}) == is_listed
    unread = [text for text in answer.warnings if "not locked" in text]
    assert any(re.search(r"\btorch\b(?! wheels)", text) for text in unread) == (not is_listed)


class FirstSuggestion(Reporter):
    """Records what a resolution reports, in order."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def conflict(self, conflict: Conflict) -> None:
        """Record the number of its suggestions."""
        self._events.append(f"conflict with {len(conflict.suggestions)} suggestions")


def test_conflict_is_reported_before_suggestions_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    search = suggest.suggest

    def suggested(*args: Any, **kwargs: Any) -> tuple[tuple[Suggestion, ...], bool]:
        events.append("search")
        return search(*args, **kwargs)

    monkeypatch.setattr(suggest, "suggest", suggested)
    request = ask(load(), "torch==2.9.1 apex==1.7.0", day="2026-11-21")
    answer = resolve(load(), request, FakeIndexes({}), reporter=FirstSuggestion(events))
    assert isinstance(answer, Conflict)
    assert events == ["conflict with 0 suggestions", "search"]


class SlowIndexes(FakeIndexes):
    """Needs a tenth of a second for the metadata of a release."""

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        """Return the metadata, late."""
        sleep(0.1)
        return super().metadata(files, listed)


def test_suggestions_have_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change needs a hundred more projects, and the limit also ends a search that has begun."""
    monkeypatch.setattr(suggest, "SECONDS", 0.5)
    chain = {f"p{number}": {"1": [f"p{number + 1}"]} for number in range(100)} | {"p100": {"1": []}}
    projects = {"a": {"1": ["b<2"], "2": ["p0"]}, "b": {"1": ["p0"], "2": []}, **chain}
    began = monotonic()
    answer = resolve(load(), ask(load(), "a==1 b==2"), SlowIndexes(projects))
    assert isinstance(answer, Conflict)
    assert answer.suggestions == ()
    assert [warning.id for warning in answer.warnings] == ["suggestions-stopped"]
    assert monotonic() - began < 5


def test_suggestions_do_not_depend_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    projects: dict[str, dict[str, list[str]]] = {
        "a": {"1": ["b<2"], "2": ["c"]},
        "b": {"1": ["c"], "2": []},
        "c": {"1": []},
    }

    def suggestions() -> tuple[tuple[Suggestion, ...], list[str]]:
        answer = resolve(load(), ask(load(), "a==1 b==2"), FakeIndexes(projects))
        assert isinstance(answer, Conflict)
        return answer.suggestions, [warning.id for warning in answer.warnings]

    usual, warnings = suggestions()
    assert len(usual) == 2
    assert warnings == []
    clock = count(step=0.9)  # each change takes that many seconds
    monkeypatch.setattr(suggest, "monotonic", lambda: next(clock))
    assert suggestions() == (usual, [])
    monkeypatch.setattr(suggest, "MOST_TRIES", 1)
    assert suggestions() == (usual[:1], ["suggestions-stopped"])


@pytest.mark.parametrize("excluded", [{"uploaded": "2027-01-01"}, {"wheels": ["cp312-cp312-win_amd64"]}])
def test_extra_of_an_excluded_release_of_the_catalog_is_a_conflict(
    catalog: Catalog, excluded: dict[str, Any]
) -> None:
    """The extra is read before the release of its project is known to have no file."""
    release = FakeRelease(requires=["b; extra == 'x'"], extras=["x"], **excluded)
    indexes = FakeIndexes({"jax": {"0.5.0": release}, "b": {"1": FakeRelease()}})
    assert isinstance(resolve(catalog, ask(catalog, "jax[x]"), indexes), Conflict)
