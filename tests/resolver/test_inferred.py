"""Releases that the catalog does not list have the facts of the nearest older release."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from resolver.answers.proven import risks
from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem
from resolver.compiling.distributions import beyond_bounds
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Backend, Requires
from resolver.lock import dumps, read_lock
from resolver.model import Conflict, Resolution
from resolver.providers.inferred import infer_releases, with_releases_of
from resolver.solving.session import Session
from resolver.versions import minor, satisfies, sort_key, version_key
from tests.resolver.solve_helpers import ask
from tests.support.indexes import URL, FakeIndexes, FakeRelease

SDIST = FakeRelease(sdist=True, wheels=())
WHEEL = FakeRelease()
STATED = 'status = "documented"\nsource = "somewhere"\n'


def _release(version: str, keys: str = "", package: str = "ext") -> str:
    keys = keys or f'sdist = {{ file = "{package}-{version}.tar.gz", sha256 = "{"0" * 64}" }}'
    head = f'[[release]]\npackage = "{package}"\nversion = "{version}"\nbackend = ["cpu"]\n'
    return f"{head}{keys}\n{STATED}"


def _requires(on: str, releases: str, versions: str, keys: str = "", package: str = "ext") -> str:
    return (
        f'[[requires]]\npackage = "{package}"\non = "{on}"\nreleases = "{releases}"\n'
        f'versions = ["{versions}"]\n{keys}\n{STATED}'
    )


GIT = f'git = {{ url = "https://git.example/ext", commit = "{"1" * 40}" }}'
EXT = f"""
[[package]]
name = "ext"
title = "An extension"
pypi = "same"
{STATED}
{_release("1.0")}
{_release("2.0")}
{_release("3.0", "pypi = true")}
{_release("4.0", GIT)}
{_requires("python", "==1.0", "==3.11")}
{_requires("python", ">=2", ">=3.12")}
{_requires("mpi4py", "==1.0", "==3.1.6")}
{_requires("mpi4py", "==1.0", "==4.0.3")}
{_requires("mpi4py", "==2.0", ">=4.1")}
[[recipe]]
package = "ext"
backend = "cpu"
releases = "==1.0"
environment = {{ FLAG = "one" }}
{STATED}
[[recipe]]
package = "ext"
backend = "cpu"
releases = ">=2"
environment = {{ FLAG = "two" }}
{STATED}
"""


BRIDGE = f"""
[[package]]
name = "bridge"
title = "A package whose requirements are known over ranges"
pypi = "same"
{STATED}
{_release("1.0", f'wheel = {{ file = "bridge-1.0-py3-none-any.whl", sha256 = "{"1" * 64}" }}', "bridge")}
{_release("2.0", f'wheel = {{ file = "bridge-2.0-py3-none-any.whl", sha256 = "{"2" * 64}" }}', "bridge")}
{_requires("python", "<1.5", "==3.10", package="bridge")}
{_requires("python", ">=1.5,<2", "==3.11", package="bridge")}
{_requires("python", ">=2", "==3.12", package="bridge")}
"""


@pytest.fixture(scope="module")
def ext(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Return a catalog with a package that has two sdists, a release with wheels and a commit."""
    path = tmp_path_factory.mktemp("ext") / "ext.toml"
    path.write_text(f"schema = 1\n{EXT}{BRIDGE}", encoding="utf-8")
    return load([path])


def _infer(
    catalog: Catalog,
    releases: Mapping[str, FakeRelease],
    name: str = "ext",
    backend: Backend = "cpu",
    until: date | None = None,
) -> Catalog:
    project = FakeIndexes({name: releases}).project(name)
    assert project is not None
    return infer_releases(catalog, name, project, backend, until=until)


def _inferred(catalog: Catalog) -> dict[str, str]:
    """Return the inferred releases, each with the release whose facts it has."""
    return {str(version): neighbour for (_, version, _), neighbour in catalog.inferred.items()}


def _resolved(catalog: Catalog, indexes: FakeIndexes | None, text: str) -> Resolution:
    answer = resolve(catalog, ask(catalog, text, site="local", backend="cpu"), indexes)
    assert isinstance(answer, Resolution), answer
    return answer


def _conflict(catalog: Catalog, indexes: FakeIndexes, text: str) -> Conflict:
    answer = resolve(catalog, ask(catalog, text, site="local", backend="cpu"), indexes)
    assert isinstance(answer, Conflict), answer
    return answer


# Inferred releases.


def test_releases_get_nearest_release_below(ext: Catalog) -> None:
    versions = ("0.9", "1.0.0", "1.0.post1", "1.5", "2.0", "2.9", "10.0")
    assert _inferred(_infer(ext, dict.fromkeys(versions, SDIST))) == {
        "1.0.post1": "1.0",
        "1.5": "1.0",
        "2.9": "2.0",
    }


def test_release_needs_the_kind_of_file_of_its_neighbour(ext: Catalog) -> None:
    releases = {
        "1.1": WHEEL,
        "1.2": FakeRelease(sdist=True),
        "1.3": FakeRelease(sdist=True, hashed=False),
        "3.1": SDIST,
        "3.2": FakeRelease(sdist=True),
    }
    catalog = _infer(ext, releases)
    assert _inferred(catalog) == {"1.2": "1.0", "3.2": "3.0"}
    built, published = catalog.release["ext", "1.2", ""], catalog.release["ext", "3.2", ""]
    assert built.sdist is not None
    assert (built.sdist.file, len(built.sdist.sha256), built.pypi) == ("ext-1.2.tar.gz", 64, False)
    assert (published.sdist, published.pypi) == (None, True)


def test_commit_is_not_a_neighbour(ext: Catalog) -> None:
    assert _inferred(_infer(ext, {"4.1": FakeRelease(sdist=True)})) == {}


def test_pre_releases_local_versions_and_yanked_releases_are_left_out(ext: Catalog) -> None:
    releases = dict.fromkeys(("2.1rc1", "2.1.dev3", "2.1+cpu"), SDIST)
    yanked = FakeRelease(sdist=True, wheels=(), yanked="broken")
    assert _inferred(_infer(ext, {**releases, "2.2": yanked, "2.3": SDIST})) == {"2.3": "2.0"}


def test_files_uploaded_later_are_left_out(ext: Catalog) -> None:
    releases = {
        f"2.{number}": FakeRelease(sdist=True, wheels=(), uploaded=uploaded)
        for number, uploaded in enumerate(("", "2026-03-01T23:59:59Z", "2026-03-02T00:00:00Z"), start=1)
    }
    assert set(_inferred(_infer(ext, releases, until=date(2026, 3, 1)))) == {"2.1", "2.2"}


def test_release_is_for_one_backend(ext: Catalog) -> None:
    assert _inferred(_infer(ext, {"1.5": SDIST}, backend="rocm")) == {}
    assert _infer(ext, {"1.5": SDIST}).release["ext", "1.5", ""].backend == ("cpu",)


def test_inferred_release_is_not_a_neighbour(ext: Catalog) -> None:
    once = _infer(ext, {"1.5": SDIST})
    assert _inferred(_infer(once, {"1.5": SDIST, "1.7": SDIST})) == {"1.5": "1.0", "1.7": "1.0"}


# Inferred facts.


def _facts(catalog: Catalog, version: str, on: str) -> list[Requires]:
    return [row for row in catalog.requires if (row.releases, row.on) == (f"=={version}", on)]


def test_facts_over_ranges_apply_and_missing_ones_are_copied(ext: Catalog) -> None:
    catalog = _infer(ext, {"1.5": SDIST, "2.5": SDIST})
    assert [row.versions for row in _facts(catalog, "1.5", "python")] == [("==3.11",)]
    assert [row.versions for row in _facts(catalog, "1.5", "mpi4py")] == [("==3.1.6",), ("==4.0.3",)]
    assert _facts(catalog, "2.5", "python") == []
    assert [row.versions for row in _facts(catalog, "2.5", "mpi4py")] == [(">=4.1",)]


def test_copied_facts_are_inferred_and_name_their_release(ext: Catalog) -> None:
    catalog = _infer(ext, {"1.5": SDIST})
    (fact,) = _facts(catalog, "1.5", "python")
    assert (fact.status, fact.source) == ("inferred", "somewhere")
    assert fact.note == "Facts of ext 1.0, the nearest release."
    release = catalog.release["ext", "1.5", ""]
    assert (release.status, release.source, release.note) == ("inferred", f"{URL}/ext/", fact.note)


def test_recipe_is_copied_if_none_covers_the_release(ext: Catalog) -> None:
    catalog = _infer(ext, {"1.5": SDIST, "2.5": SDIST})
    copied, own = (catalog.recipe_for(catalog.release["ext", v, ""], "cpu") for v in ("1.5", "2.5"))
    assert copied is not None
    assert own is not None
    assert (copied.environment, copied.status) == ({"FLAG": "one"}, "inferred")
    assert (own.environment, own.status) == ({"FLAG": "two"}, "documented")


def test_facts_of_variants_and_of_the_other_backend_are_not_copied(overlay: Callable[[str], Path]) -> None:
    rows = [
        _requires("torch", "==1.0", ">=2", 'variant = "abc"'),
        _requires("torch", "==1.0", ">=3", 'backend = "rocm"'),
    ]
    catalog = _infer(load([overlay(EXT + "".join(rows))]), {"1.5": SDIST})
    assert _facts(catalog, "1.5", "torch") == []


# Requests to the indexes, and the chosen releases.


def test_unlisted_release_resolves_with_warning(ext: Catalog) -> None:
    lock = _resolved(ext, FakeIndexes({"ext": {"1.5": SDIST}}), "ext==1.5")
    pick = lock.pick("ext")
    assert pick is not None
    assert (pick.version, pick.origin, pick.support) == ("1.5", "build", "inferred")
    assert pick.sdist is not None
    assert (lock.version_of("python"), lock.version_of("mpi4py")) == ("3.11", "4.0.3")
    assert "ext 1.5 is not in the catalog, so it has the facts of 1.0 (inferred)." in lock.warnings
    (fact,) = (fact for fact in pick.facts if "python" in fact.text)
    assert (fact.text, fact.status) == ("ext 1.5 requires python 3.11 (inferred from 1.0)", "inferred")


def test_release_older_than_all_listed_ones_is_taken_if_no_other_is_allowed(ext: Catalog) -> None:
    indexes = FakeIndexes({"ext": {"0.5": SDIST, "0.4": SDIST}})
    for text, version in {"ext<1": "0.5", "ext==0.4": "0.4", "ext": "4.0", "ext<=1": "1.0"}.items():
        assert _resolved(ext, indexes, text).version_of("ext") == version


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("ext==1.5", []),  # Python 3.11 and mpi4py 3.1.6 or 4.0.3 of 1.0 hold
        ("ext==1.5 python==3.12 mpi4py==4.0.3", ["python 3.11"]),
        ("ext==1.5 python==3.10", None),  # older than what 1.0 requires
        ("ext==2.5 mpi4py==4.1.0", []),
        ("ext==0.5 python==3.10", ["python 3.11"]),
        ("ext==0.5 python==3.12", None),  # newer than what the newer 1.0 documents
    ],
)
def test_inferred_bound_holds_if_possible_and_never_refuses(
    ext: Catalog, asked: str, left: list[str] | None
) -> None:
    indexes = FakeIndexes({"ext": dict.fromkeys(("0.5", "1.5", "2.5"), SDIST)})
    answer = resolve(ext, ask(ext, asked, site="local", backend="cpu"), indexes)
    if left is None:
        assert isinstance(answer, Conflict)
        return
    assert isinstance(answer, Resolution)
    risks = [warning for warning in answer.warnings if "at your own risk" in warning]
    assert len(risks) == len(left)
    assert all(
        f"requires {one}" in text and "not judged" in text for one, text in zip(left, risks, strict=True)
    )


def _unbounded(row: Requires) -> Requires:
    return replace(row, versions=beyond_bounds(row) or row.versions)


def _beyond(catalog: Catalog, row: Requires) -> str:
    """Return the nearest version of a row's object that only its inferred bound excludes; else empty."""
    tables: dict[str, Iterable[str]] = {
        name: (one.version for one in getattr(catalog, name).values()) for name in ("torch", "rocm", "python")
    }
    versions = tables.get(row.on) or (one.version for one in catalog.releases_of(row.on))
    above = (
        version
        for version in versions
        if any(satisfies(version, text) for text in beyond_bounds(row))
        and not any(satisfies(version, text) for text in row.versions)
    )
    return min(above, key=sort_key, default="")


def _without_lower(specifier: str) -> str:
    return ",".join(part for part in specifier.split(",") if not part.startswith(">"))


def test_no_inferred_bound_of_the_catalog_refuses(catalog: Catalog) -> None:
    wider = replace(catalog, requires=[*map(_unbounded, catalog.requires)])
    outcomes = Counter[str]()
    for row in catalog.requires:
        releases = (one for one in catalog.releases_of(row.package) if row.applies_to(one))
        newest = max((one.version for one in releases), key=sort_key, default="")
        version = _beyond(catalog, row)
        if not version or not newest:
            continue
        text = f"{row.package}=={newest} {row.on}=={version}"
        request = ask(catalog, text, site="local", day="2026-11-28", backend="rocm", gfx=["gfx90a"])
        problem = compile_problem(catalog, request)
        solution = Session(problem).solve()
        assert solution or not Session(compile_problem(wider, request)).solve(), text
        chosen = problem.variables[row.package].candidate(solution[row.package]) if solution else None
        if solution and chosen and chosen.release and row.applies_to(chosen.release):
            named = [one.fact.text for one in risks(problem, solution)]
            assert any(row.on in one and "not judged" in one for one in named), f"{text}: {named}"
        outcomes["refused" if solution is None else "not judged"] += 1
    assert outcomes["not judged"] > 15, outcomes


@pytest.mark.parametrize("site", ["frontier", "lumi-g", "setonix"])
def test_no_inferred_bound_on_python_overtakes_a_newer_documented_one(catalog: Catalog, site: str) -> None:
    """What an older release does on a Python was not judged, but a newer one says that it does not work."""
    answers = 0
    rows = [row for row in catalog.requires if row.on == "python" and row.status == "documented"]
    for name, python in product(sorted({row.package for row in rows}), ("3.13", "3.14", "3.15")):
        text = f"{name} python=={python}"
        request = ask(catalog, text, site=site, day="2026-11-28", backend="rocm", gfx=["gfx90a"])
        problem = compile_problem(catalog, request)
        solution = Session(problem).solve()
        if not solution:
            continue
        answers += 1
        version = problem.variables[name].candidate(solution[name]).version
        left = [
            one.fact.text
            for one in risks(problem, solution)
            if f"{name} {version} requires python" in one.fact.text
        ]
        newer = [
            f"{row.releases} requires python {row.versions}"
            for row, release in product(rows, catalog.releases_of(name))
            if row.package == name
            and row.applies_to(release)
            and version_key(release.version) > version_key(version)
            and not any(satisfies(python, _without_lower(text)) for text in row.versions)
        ]
        assert not (left and newer), f"{name} {version} on Python {python} at {site}: {left}, though {newer}"
    assert answers > 5


@pytest.mark.parametrize(("asked", "line", "warned"), [("", "2.13", 0), (" torch==2.14.*", "2.14", 1)])
def test_inferred_bound_of_a_project_of_an_index_never_refuses(
    catalog: Catalog, asked: str, line: str, warned: int
) -> None:
    indexes = FakeIndexes({"torch-cluster-rocm": {"1.6.3.post6": WHEEL}})
    request = ask(catalog, f"torch-cluster-rocm{asked}", site="local", day="2026-11-28", backend="rocm")
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("torch")) == line
    risks = [warning for warning in answer.warnings if warning.id == "at-own-risk"]
    assert len(risks) == warned
    text = "requires torch ==2.13.*, and whether others work was not judged"
    assert all(text in one for one in risks)
    pick = answer.pick("torch-cluster-rocm")
    assert pick is not None
    assert (pick.verdict, pick.support) == (
        ("at-own-risk", "inferred") if warned else ("supported", "observed")
    )
    assert (text in pick.weakest.text) == bool(warned)


def test_documented_bound_refuses(ext: Catalog) -> None:
    conflict = _conflict(ext, FakeIndexes({"bridge": {"1.7": WHEEL}}), "bridge==1.7 python==3.12")
    assert "bridge >=1.5,<2 requires python 3.11" in str([item.text for item in conflict.core])


def test_listed_release_is_preferred_to_newer_ones(ext: Catalog) -> None:
    lock = _resolved(ext, FakeIndexes({"ext": {"1.5": SDIST, "2.5": SDIST}}), "ext<3")
    assert lock.version_of("ext") == "2.0"
    assert not [warning for warning in lock.warnings if "not in the catalog" in warning]


def test_listed_release_is_preferred_in_widened_catalog(ext: Catalog) -> None:
    wider = _infer(ext, {"2.5": SDIST, "1.5": SDIST, "3.5": WHEEL})
    variable = compile_problem(wider, ask(wider, "ext", site="local", backend="cpu")).variables["ext"]
    versions = [candidate.version for candidate in variable.candidates]
    assert versions == ["4.0", "3.0", "2.0", "1.0", "3.5", "2.5", "1.5"]


def test_unlisted_release_resolves_a_conflict(ext: Catalog) -> None:
    indexes = FakeIndexes({"bridge": {"1.7": WHEEL, "2.5": WHEEL}, "deepspeed": {"0.18.1": SDIST}})
    lock = _resolved(ext, indexes, "bridge python==3.11 deepspeed")
    assert lock.version_of("bridge") == "1.7"
    assert lock.version_of("deepspeed") == "0.18.6"
    assert len([warning for warning in lock.warnings if "not in the catalog" in warning]) == 1


def test_unlisted_release_is_chosen_if_a_distribution_outside_the_catalog_requires_it(ext: Catalog) -> None:
    indexes = FakeIndexes({"bridge": {"1.7": WHEEL, "1.8": WHEEL}, "helper": {"1.0": ["bridge==1.7"]}})
    for text in ("helper bridge", "helper"):
        lock = _resolved(ext, indexes, text)
        assert (lock.version_of("bridge"), lock.version_of("helper")) == ("1.7", "1.0")


def test_conflict_that_no_release_resolves_is_explained(ext: Catalog) -> None:
    releases = {f"1.{minor}": WHEEL for minor in range(5, 500)}
    conflict = _conflict(ext, FakeIndexes({"bridge": releases}), "bridge python==3.13")
    assert [item.text for item in conflict.core] == [
        "you asked for bridge",
        "you asked for python==3.13",
        "every bridge requires python 3.10, 3.11 or 3.12",
    ]


@pytest.mark.parametrize("asked", ["ext==1.5", "ext", "ext==1.0 python==3.12"])
def test_unreachable_index_is_an_error(ext: Catalog, asked: str) -> None:
    indexes = FakeIndexes({}, unreachable=["ext"])
    with pytest.raises(EnvironmentLacksError, match=f"{URL} cannot be reached"):
        _resolved(ext, indexes, asked)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.4", "it has no sdist with a SHA-256, unlike the nearest release (1.0)"),
        ("1.1", "it has no sdist with a SHA-256, unlike the nearest release (1.0)"),
        ("1.2", "it was yanked"),
        ("1.3", "it was published after 2026-03-01"),
        ("1.4rc1", "pre-releases and versions with a local label must be listed"),
        ("3.1", "it has no wheel, unlike the nearest release (3.0)"),
        ("4.1", "the nearest release, 4.0, is built from a commit, not from the index"),
    ],
)
def test_release_without_facts_is_an_error_with_reason(ext: Catalog, version: str, reason: str) -> None:
    releases = {
        "0.4": WHEEL,
        "1.1": WHEEL,
        "1.2": FakeRelease(sdist=True, yanked=""),
        "1.3": FakeRelease(sdist=True, uploaded="2026-03-02T00:00:00Z"),
        "1.4rc1": SDIST,
        "3.1": SDIST,
        "4.1": SDIST,
    }
    with pytest.raises(UsageError) as caught:
        _resolved(ext, FakeIndexes({"ext": releases}), f"ext=={version}")
    expected = f"The catalog does not list ext {version}, and its facts cannot be inferred: {reason}."
    assert caught.value.message == expected
    assert "Known versions: 4.0, 3.0, 2.0 and 1.0." in caught.value.hint


def test_version_that_no_index_has_is_an_error_with_versions_of_both(ext: Catalog) -> None:
    with pytest.raises(UsageError, match="neither in the catalog nor on an index") as caught:
        _resolved(ext, FakeIndexes({"ext": {"1.5": SDIST}}), "ext==9")
    known = "Known versions: 4.0, 3.0, 2.0, 1.5 and 1.0."
    assert caught.value.hint == f"The nearest version is 4.0. {known} Searched: {URL}."


def test_project_that_no_index_has_is_an_error_that_names_the_indexes(ext: Catalog) -> None:
    with pytest.raises(UsageError, match="no index has the project") as caught:
        _resolved(ext, FakeIndexes({}), "ext==9")
    assert URL in caught.value.hint


def test_foreign_project_of_the_same_name_is_not_queried(catalog: Catalog) -> None:
    indexes = FakeIndexes({"apex": {"3.0": SDIST}})
    with pytest.raises(UsageError, match="No known version of apex"):
        resolve(catalog, ask(catalog, "apex==3.0"), indexes)
    assert indexes.asked == []


# The lock.


def test_lock_brings_its_releases_into_the_catalog(ext: Catalog, tmp_path: Path) -> None:
    for text in ("ext==1.5", "ext==3.5"):
        lock = _resolved(ext, FakeIndexes({"ext": {"1.5": SDIST, "3.5": WHEEL}}), text)
        path = tmp_path / "matrix.lock"
        path.write_text(dumps(lock), encoding="utf-8")
        wider = with_releases_of(ext, read_lock(path))
        before, again = lock.pick("ext"), _resolved(wider, None, text).pick("ext")
        assert before is not None
        assert again == replace(before, files=())


def test_lock_of_listed_releases_leaves_the_catalog_as_it_is(ext: Catalog) -> None:
    assert with_releases_of(ext, _resolved(ext, None, "ext==1.0")) is ext


def test_release_of_a_missing_overlay_is_not_inferred(ext: Catalog, overlay: Callable[[str], Path]) -> None:
    more = load([overlay(EXT + _release("2.7"))])
    assert with_releases_of(ext, _resolved(more, None, "ext==2.7")) is ext


# The shipped catalog.

DEEPSPEED = dict.fromkeys(
    [
        "0.1.0",
        "0.9.5",
        "0.10.3",
        "0.11.2",
        "0.13.4",
        "0.14.1",
        "0.16.7",
        "0.17.5",
        "0.18.1",
        "0.19.6",
        "0.20.0",
    ],
    SDIST,
)


def test_deepspeed_that_is_not_listed_resolves_at_lumi_g(catalog: Catalog) -> None:
    for version, neighbour in {"0.18.1": "0.17.6", "0.14.1": "0.14.0", "0.20.0": "0.19.8"}.items():
        lock = resolve(catalog, ask(catalog, f"deepspeed=={version}"), FakeIndexes({"deepspeed": DEEPSPEED}))
        assert isinstance(lock, Resolution)
        pick = lock.pick("deepspeed")
        assert pick is not None
        assert (pick.version, pick.support, pick.origin) == (version, "inferred", "build")
        text = f"deepspeed {version} is not in the catalog, so it has the facts of {neighbour} (inferred)."
        assert text in lock.warnings


def test_bitsandbytes_after_a_commit_cannot_be_inferred(catalog: Catalog) -> None:
    indexes = FakeIndexes({"bitsandbytes": {"0.48.3": WHEEL, "0.49.9": WHEEL}})
    with pytest.raises(UsageError, match="is built from a commit"):
        resolve(catalog, ask(catalog, "bitsandbytes==0.48.3"), indexes)
    lock = resolve(catalog, ask(catalog, "bitsandbytes==0.49.9"), indexes)
    assert isinstance(lock, Resolution)
    pick = lock.pick("bitsandbytes")
    assert pick is not None
    assert (pick.version, pick.origin, pick.support) == ("0.49.9", "published", "inferred")


def test_a_commit_is_listed_although_the_release_of_its_version_is_not(catalog: Catalog) -> None:
    indexes = FakeIndexes({"vllm": {"0.7.2": SDIST, "0.7.3": SDIST}})
    lock = resolve(catalog, ask(catalog, "torch vllm", day="2025-03-26"), indexes)
    assert isinstance(lock, Resolution)
    picks = {pick.name: (pick.version.partition("+")[0], pick.variant) for pick in lock.picks}
    assert picks["torch"] == ("2.6.0", "")  # LUMI built the commit with it; 0.7.3 requires torch 2.5.1
    assert picks["vllm"] == ("0.7.2", "cbbbecb")


def test_conflict_over_many_releases_is_short(catalog: Catalog) -> None:
    releases = {f"0.{minor}.{patch}": SDIST for minor in range(9, 60) for patch in range(40)}
    indexes = FakeIndexes({"deepspeed": releases})
    answer = resolve(catalog, ask(catalog, "deepspeed==0.30.39 torch==1.13.*"), indexes)
    assert isinstance(answer, Conflict)
    assert len(answer.core) <= 10
    assert max(len(item.text) for item in answer.core) < 300


def test_inferring_80_releases_takes_a_few_milliseconds(catalog: Catalog) -> None:
    releases = {f"0.{minor}.{patch}": SDIST for minor in range(1, 41) for patch in (41, 42)}
    project = FakeIndexes({"vllm": releases}).project("vllm")
    assert project is not None
    times = []
    for _ in range(5):
        start = time.process_time()
        wider = infer_releases(catalog, "vllm", project, "rocm")
        times.append(time.process_time() - start)
    assert len(wider.inferred) > 60
    assert min(times) < 0.02
