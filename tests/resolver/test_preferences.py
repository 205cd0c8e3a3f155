"""What the resolver prefers, over classes of small universes of package indexes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from datetime import date
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from resolver.answers.explain import LinkGroup, explain_conflict
from resolver.answers.resolve import Search, resolve
from resolver.errors import SourceError, UsageError
from resolver.facts import schema
from resolver.facts.catalog import Catalog, closed_names, load
from resolver.indexes import File, Metadata
from resolver.model import Conflict, ImageUse, Request, Resolution, Target
from resolver.requirements import parse_requirement
from resolver.solving.session import Refuted
from resolver.versions import sort_key
from tests.resolver.open_universe import DAY, GLIBC, OpenUniverse, open_universe, versions_of
from tests.resolver.solve_helpers import ask
from tests.resolver.test_open_world import Projects, answer, chosen, versions
from tests.support.indexes import FakeIndexes, FakeRelease

SEEDS = range(80)
PYTHONS = ("3.12", "3.11", "3.10")
KNOWN = 'status = "documented"\nsource = "made up for a test"\n'


def with_python(
    projects: Projects | FakeIndexes, *requirements: str, pythons: tuple[str, ...] = PYTHONS
) -> dict[str, str]:
    """Return the versions of an answer and its Python; empty if there is none."""
    resolution = answer(projects, *requirements, pythons=pythons)
    if not isinstance(resolution, Resolution):
        return {}
    return {**versions_of(resolution), "python": resolution.version_of("python")}


# The order of names in a request.


def _outcome(universe: OpenUniverse) -> object:
    try:
        found = Search(universe.catalog, universe.request, universe.indexes()).answer
    except UsageError:
        return "usage"
    if isinstance(found, Resolution):
        return versions_of(found), found.version_of("python")
    return "conflict"


@pytest.mark.parametrize("pythons", [("3.12",), PYTHONS])
def test_order_of_request_does_not_change_answer(pythons: tuple[str, ...]) -> None:
    answered = refused = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        universe = open_universe(chance, projects=6, releases=6, pythons=pythons)
        expected = _outcome(universe)
        shuffled = dataclasses.replace(
            universe,
            requirements=tuple(chance.sample(universe.requirements, len(universe.requirements))),
            constraints=tuple(chance.sample(universe.constraints, len(universe.constraints))),
            overrides=tuple(chance.sample(universe.overrides, len(universe.overrides))),
        )
        assert _outcome(shuffled) == expected, (seed, shuffled.requirements)
        answered += isinstance(expected, tuple)
        refused += expected == "conflict"
    assert answered > len(SEEDS) // 5
    assert refused > len(SEEDS) // 10


def _limited(many: str, few: str, newest: int, *, oldest_is_free: bool, steps: int) -> Projects:
    """Return a project whose newest releases require an older release of another one, through some steps."""
    between = [f"step-{number}" for number in range(steps)]
    limit = f"{few}<2"
    projects: dict[str, dict[str, Sequence[str]]] = {few: {"1": [], "2": []}}
    for name in reversed(between):
        projects[name] = {"1": [limit]}
        limit = name
    projects[many] = {str(number): [limit] for number in range(2, newest + 2)}
    if oldest_is_free:
        projects[many]["1"] = []
    return projects


@pytest.mark.parametrize("names", [("many", "few"), ("few", "many"), ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize(
    "newest", [1, 6, pytest.param(4, marks=pytest.mark.slow), 12, pytest.param(60, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("oldest_is_free", [True, False])
def test_order_of_request_does_not_matter_if_search_backtracks(
    names: tuple[str, str], steps: int, newest: int, *, oldest_is_free: bool
) -> None:
    projects = _limited(*names, newest, oldest_is_free=oldest_is_free, steps=steps)
    answers = [chosen(projects, *order) for order in permutations(names)]
    assert answers[0] == answers[1]
    assert answers[0].keys() >= {*names}


# A project that conflicts repeatedly is decided earlier.


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids="-".join)
@pytest.mark.parametrize("newest", [10, 25, 60])
@pytest.mark.parametrize("steps", [0, 1])
def test_project_with_many_conflicts_keeps_its_newest_release(
    names: tuple[str, str], newest: int, steps: int
) -> None:
    many, few = names
    projects = _limited(many, few, newest, oldest_is_free=True, steps=steps)
    for order in permutations(names):
        found = chosen(projects, *order)
        assert (found[many], found[few]) == (str(newest + 1), "1")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids="-".join)
def test_release_is_not_too_old_because_of_another_project(names: tuple[str, str]) -> None:
    """The newest releases of one project agree on the other one; only its oldest release does not care."""
    first, second = names
    projects: Projects = {
        first: versions("1", "2"),
        second: {"1": ["too-old"], **{f"2.{minor}": [f"{first}==1"] for minor in range(10)}},
        "too-old": versions("1"),
    }
    for order in permutations(names):
        assert chosen(projects, *order) == {first: "1", second: "2.9"}


@pytest.mark.parametrize("order", [*permutations(["a", "b", "c"])], ids="-".join)
def test_repeated_conflicts_of_several_projects(order: Sequence[str]) -> None:
    """Two projects agree on an older release of a third; each alone would be decided late."""
    projects: Projects = {
        "a": versions("1", "2", "3"),
        "b": {str(number): ["a<3"] if number > 1 else [] for number in range(1, 30)},
        "c": {str(number): ["a<2"] if number > 1 else [] for number in range(1, 30)},
    }
    assert chosen(projects, *order) == {"a": "1", "b": "29", "c": "29"}


# Requested distributions, Python, and the rest.


OLD_PYTHON = {
    "requires-python": FakeRelease(requires_python="<3.12"),
    "tag": FakeRelease(wheels=["cp311-cp311-manylinux_2_28_x86_64"]),
    "dependency": FakeRelease(requires=["needs-old"]),
    "marker": FakeRelease(requires=["missing; python_version >= '3.12'"]),
}
NEEDS_OLD = {"needs-old": versions("1", "2", requires_python="<3.12")}


@pytest.mark.parametrize("reason", OLD_PYTHON)
@pytest.mark.parametrize("others", [(), ("other",), ("a-other", "z-other")])
def test_newest_requested_release_decides_python(reason: str, others: tuple[str, ...]) -> None:
    projects: Projects = {
        **NEEDS_OLD,
        "lib": {"1": [], "2": OLD_PYTHON[reason]},
        **{name: versions("1", "2") for name in others},
    }
    for order in permutations(["lib", *others]):
        found = with_python(projects, *order)
        assert found.pop("needs-old", "2") == "2"
        assert found == {"lib": "2", **dict.fromkeys(others, "2"), "python": "3.11"}


@pytest.mark.parametrize("reason", OLD_PYTHON)
def test_newest_python_wins_over_newest_dependency(reason: str) -> None:
    projects: Projects = {**NEEDS_OLD, "lib": {"1": [], "2": OLD_PYTHON[reason]}, "user": {"1": ["lib"]}}
    assert with_python(projects, "user") == {"user": "1", "lib": "1", "python": "3.12"}


def _catalog(*rows: schema.Row) -> Catalog:
    """Return a catalog with three Pythons and a site, and rows."""
    known = {"status": "documented", "source": "made up for a test"}
    pythons = [schema.Python(version=version, **known) for version in PYTHONS]  # type: ignore[arg-type]
    site = schema.Site(name="here", title="a site", backend="cpu", **known)  # type: ignore[arg-type]
    by_kind: dict[str, list[schema.Row]] = {}
    for row in rows:
        by_kind.setdefault({"SiteAdvice": "site_advice"}[type(row).__name__], []).append(row)
    return Catalog.from_rows(schema.CatalogFile(schema=1, python=pythons, site=[site], **by_kind))  # type: ignore[arg-type]


def _request(*requirements: str) -> Request:
    target = Target(site="here", date=DAY, backend="cpu", glibc=GLIBC)
    return Request(target, tuple(map(parse_requirement, requirements)))


def test_python_of_the_image_is_decided_before_requested_releases(catalog: Catalog) -> None:
    image = "lumi-multitorch-full-u24r64f21m43t29-20260124_092648.sif"
    (of_image,) = catalog.image[image].python
    not_of_image = FakeRelease(requires_python=f"!={of_image}.*")
    indexes = FakeIndexes({"lib": {"1": [], "2": not_of_image}, "only": {"1": not_of_image}})
    found = resolve(catalog, ask(catalog, "lib", base_image=image), indexes)
    assert isinstance(found, Resolution), found
    assert (found.version_of("python"), found.version_of("lib")) == (of_image, "1")
    found = resolve(catalog, ask(catalog, "lib"), indexes)
    assert isinstance(found, Resolution), found
    assert found.version_of("lib") == "2"


# The base image and the Python of the site.


SITES_WITH_IMAGES = {
    "archer2": ["2026-11-20"],
    "lumi-g": ["2024-12-01", "2025-06-01", "2026-03-01", "2026-06-01", "2026-11-20"],
}


def with_image(
    catalog: Catalog,
    requirements: str,
    use: ImageUse = "of-site",
    *,
    site: str = "lumi-g",
    day: str = "2026-03-01",
) -> Request:
    return replace(ask(catalog, requirements, site=site, day=day), use_image=use)


def test_sites_with_images_are_all_tried(catalog: Catalog) -> None:
    rocm = {row.site for row in catalog.site_image.values() if catalog.image[row.image].rocm}
    assert rocm == {*SITES_WITH_IMAGES}


@pytest.mark.parametrize(
    ("site", "day"), [(site, day) for site, days in SITES_WITH_IMAGES.items() for day in days]
)
def test_whatever_uses_rocm_gets_an_image_of_the_site(site: str, day: str, catalog: Catalog) -> None:
    listed = {row.image for row in catalog.images_at(site, date.fromisoformat(day))}
    for use in ("of-site", "if-needed", "none"):
        found = resolve(catalog, with_image(catalog, "torch", use, site=site, day=day))
        assert isinstance(found, Resolution), found
        assert (found.target.base_image in listed) == (use == "of-site"), found.target
        python = found.pick("python")
        assert python is not None
        pythons = {version for name in listed for version in catalog.image[name].python}
        assert not pythons or python.version in pythons
        assert (python.origin == "base-image") == (use == "of-site" and bool(pythons))


def test_without_rocm_there_is_no_image(catalog: Catalog) -> None:
    found = resolve(catalog, with_image(catalog, "lib"), FakeIndexes({"lib": {"1": []}}))
    assert isinstance(found, Resolution), found
    assert found.image is None
    found = resolve(catalog, with_image(catalog, "user"), FakeIndexes({"user": {"1": ["torch"]}}))
    assert isinstance(found, Resolution), found
    assert found.image is not None


def test_an_image_that_does_not_fit_is_no_conflict(catalog: Catalog) -> None:
    images = (catalog.image[row.image] for row in catalog.images_at("lumi-g", date(2026, 3, 1)))
    assert not any(row.rocm.startswith("6.3") for row in images)
    found = resolve(catalog, with_image(catalog, "torch rocm==6.3.*"))
    assert isinstance(found, Resolution), found
    assert found.image is None
    assert "No base image that lumi-g lists fits this request, so none is used." in found.notes


def test_no_image_at_all_is_a_conflict_for_what_needs_one(catalog: Catalog) -> None:
    found = resolve(catalog, with_image(catalog, "apex", "none"))
    assert isinstance(found, Conflict)
    assert any("no base image" in constraint.text for constraint in found.core)
    assert [one.request.use_image for one in found.suggestions] == ["of-site"]


@pytest.mark.parametrize("use", ["of-site", "none"])
def test_python_of_images_yields_to_wheels_of_what_was_asked_for(use: ImageUse, catalog: Catalog) -> None:
    indexes = FakeIndexes({"lib": {"1": FOR_311}, "pure": {"1": STATIC}})
    for names, version in (("lib torch", "3.11"), ("pure torch", "3.12")):
        found = resolve(catalog, with_image(catalog, names, use), indexes)
        assert isinstance(found, Resolution), found
        assert found.version_of("python") == version
        assert (found.image is not None) == (use == "of-site")


@pytest.mark.parametrize("day", ["2026-03-01", "2026-11-20"])
def test_newest_python_is_the_last_choice_at_sites_without_images(day: str, catalog: Catalog) -> None:
    released = [row.version for row in catalog.python.values() if str(row.released) <= day]
    newest, before = sorted(released, key=sort_key)[:-3:-1]
    for requirements, version in (("lib", before), (f"lib python=={newest}.*", newest)):
        request = ask(catalog, requirements, site="frontier", day=day)
        found = resolve(catalog, request, FakeIndexes({"lib": {"1": []}}))
        assert isinstance(found, Resolution), found
        assert found.version_of("python") == version
    pick = resolve(catalog, ask(catalog, "lib", site="frontier", day=day), FakeIndexes({"lib": {"1": []}}))
    assert isinstance(pick, Resolution)
    (reason,) = (one.facts[0].text for one in pick.picks if one.name == "python")
    assert reason.endswith(f"that fits; {newest} comes last")


def test_python_with_the_most_wheels_comes_first(catalog: Catalog) -> None:
    wheels = {"cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_x86_64"}
    both = FakeRelease(wheels=sorted(wheels), sdist=True)
    for projects, version in (({"a": both, "b": FOR_311}, "3.11"), ({"a": both, "b": STATIC}, "3.12")):
        indexes = FakeIndexes({name: {"1": release} for name, release in projects.items()})
        found = resolve(catalog, ask(catalog, "a b", site="frontier"), indexes)
        assert isinstance(found, Resolution), found
        assert found.version_of("python") == version


# Wheels and source builds.


STATIC = FakeRelease(wheels=(), sdist=True)
DYNAMIC = FakeRelease(wheels=(), sdist=True, static=False)
FOR_311 = FakeRelease(wheels=["cp311-cp311-manylinux_2_28_x86_64"], sdist=True)


@pytest.mark.parametrize("source", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("asked", ["lib", "user"])
def test_older_python_avoids_source_build(source: FakeRelease, asked: str) -> None:
    release = replace(source, wheels=["cp311-cp311-manylinux_2_28_x86_64"])
    projects: Projects = {"lib": {"1": release}, "user": {"1": ["lib"]}}
    assert with_python(projects, asked)["python"] == "3.11"


@pytest.mark.parametrize("source", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("asked", ["lib", "user"])
@pytest.mark.parametrize("passed", [1, 2, 3])
def test_slightly_older_release_avoids_source_build(source: FakeRelease, asked: str, passed: int) -> None:
    releases: dict[str, FakeRelease] = {"1": FakeRelease()}
    releases |= {str(number): source for number in range(2, passed + 2)}
    projects: Projects = {"lib": releases, "user": {"1": ["lib"]}}
    resolution = answer(projects, asked)
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("lib") == "1"
    assert any(f"lib 1 was chosen because {passed + 1} has no wheel" in text for text in resolution.warnings)
    assert chosen(projects, asked, f"lib=={passed + 1}")["lib"] == str(passed + 1)


@pytest.mark.parametrize(("newest", "named"), [({}, True), ({"3": FakeRelease(requires=["other<1"])}, False)])
def test_wheel_is_the_reason_only_if_the_newest_release_lacks_one(
    newest: dict[str, FakeRelease], named: bool
) -> None:
    releases = {"1": FakeRelease(), "2": STATIC, **newest}
    projects: Projects = {"lib": releases, "other": {"1": []}}
    resolution = answer(projects, "lib", "other")
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("lib") == "1"
    assert ["newer-has-no-wheel"] * named == [one.id for one in resolution.warnings if "no wheel" in one]


def test_much_older_release_does_not_replace_source_build() -> None:
    releases: dict[str, FakeRelease] = {
        "1": FakeRelease(),
        **versions(*map(str, range(2, 20)), wheels=(), sdist=True),
    }
    assert chosen({"lib": releases}, "lib") == {"lib": "19"}


@pytest.mark.parametrize("order", [*permutations(["source", "old", "both"])], ids="-".join)
def test_only_projects_without_wheels_are_built(order: Sequence[str]) -> None:
    """A project that has no wheels at all does not make another project lose its wheels."""
    projects: Projects = {
        "source": versions("1", "2", wheels=(), sdist=True),
        "old": {"1": replace(STATIC, wheels=["cp311-cp311-manylinux_2_28_x86_64"])},
        "both": versions("1", sdist=True),
    }
    found = answer(projects, *order, pythons=PYTHONS)
    assert isinstance(found, Resolution)
    assert found.version_of("python") == "3.11"
    assert {pick.name for pick in found.built()} == {"source"}


def test_wheels_do_not_cost_a_requested_release() -> None:
    """Two projects have wheels for different Pythons, so one of them is built: the one decided later."""
    projects: Projects = {
        "a": {"1": replace(STATIC, wheels=["cp311-cp311-manylinux_2_28_x86_64"])},
        "b": {"1": replace(STATIC, wheels=["cp312-cp312-manylinux_2_28_x86_64"])},
    }
    built = set()
    for order in permutations(projects):
        found = answer(projects, *order, pythons=PYTHONS)
        assert isinstance(found, Resolution)
        built.add(tuple(pick.name for pick in found.built()))
    assert len(built) == 1
    assert len(*built) == 1


# Pre-releases.


def test_prerelease_is_never_chosen_unless_named() -> None:
    """A random request never gets a pre-release of a project that has other releases."""
    finals = 0
    for seed in SEEDS:
        universe = open_universe(random.Random(seed), projects=5, releases=6, pythons=PYTHONS)
        outcome = _outcome(universe)
        if not isinstance(outcome, tuple):
            continue
        texts = (*universe.requirements, *universe.constraints, *universe.overrides)
        named = {parse_requirement(text).name for text in texts if "a1" in text}
        for name, version in outcome[0].items():
            has_final = any(not Version(other).is_prerelease for other in universe.projects[name])
            if name not in named and has_final:
                finals += 1
                assert not Version(version).is_prerelease, (seed, name)
    assert finals > 40


@pytest.mark.parametrize("asked", ["lib", "user"])
@pytest.mark.parametrize("prerelease", ["3rc0", "3a1", "3.dev1", "3b2.post1"])
def test_newest_python_is_not_worth_a_prerelease(asked: str, prerelease: str) -> None:
    projects: Projects = {
        "lib": {prerelease: FakeRelease(), "2": FakeRelease(requires_python="<3.12")},
        "user": {"1": ["lib"]},
    }
    found = with_python(projects, asked)
    assert (found["lib"], found["python"]) == ("2", "3.11")
    found = with_python(projects, asked, f"lib>={prerelease}")
    assert (found["lib"], found["python"]) == (prerelease, "3.12")


# Facts of the catalog about one release.


@pytest.mark.parametrize("listed", ["902", "903", "904"])
@pytest.mark.parametrize(("asked", "sdist"), [("numpy", True), ("numpy", False), ("user", False)])
def test_fact_about_one_release_does_not_make_its_neighbour_win(
    listed: str, asked: str, overlay: Callable[[str], Path], *, sdist: bool
) -> None:
    """The releases are alike, but the catalog knows the Pythons of one release only."""
    row = f'[[requires]]\npackage = "numpy"\nreleases = "=={listed}"\non = "python"\nversions = ["<3.13"]\n'
    catalog = load([overlay(row + KNOWN)])
    wheels = ["cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_x86_64"]
    projects: Projects = {
        "numpy": versions("901", "902", "903", "904", wheels=wheels, sdist=sdist),
        "user": {"1": ["numpy"]},
    }
    request = ask(catalog, asked, site="local", backend="cpu")
    found = resolve(catalog, request, FakeIndexes(projects))
    assert isinstance(found, Resolution)
    assert (found.version_of("numpy"), found.version_of("python")) == ("904", "3.12")


# A given patch release of Python.


@pytest.mark.parametrize(
    ("requires", "given", "fits"),
    [
        (">=3.13.2", "3.13.0", False),
        (">=3.13", "3.13.0", True),
        ("!=3.13.0", "3.13.0", False),
        ("<3.13.1", "3.13.0", True),
        ("<=3.13", "3.13.0", True),
        (">3.13.0", "3.13.0", False),
    ],
)
@pytest.mark.parametrize("asked", ["lib", "user"])
def test_given_patch_release_decides(requires: str, given: str, asked: str, *, fits: bool) -> None:
    projects: Projects = {
        "lib": {"1": FakeRelease(), "2": FakeRelease(requires_python=requires)},
        "user": {"1": ["lib"]},
        "only": {"1": FakeRelease(requires_python=requires)},
        "marked": {"1": [f"lib<2; python_full_version >= '{given}'"]},
    }
    pin, pythons = f"python=={given}", ("3.14", "3.13", "3.12")
    assert chosen(projects, asked, pin, pythons=pythons)["lib"] == ("2" if fits else "1")
    assert bool(chosen(projects, "only", pin, pythons=pythons)) is fits
    assert chosen(projects, "marked", pin, pythons=pythons)["lib"] == "1"


# Releases without a file, and releases that cannot be read.


@pytest.mark.parametrize("pin", ["", "==306"])
@pytest.mark.parametrize("asked", ["winlib", "user"])
@pytest.mark.parametrize("pythons", [("3.12",), PYTHONS])
def test_release_without_linux_file_says_so(pin: str, asked: str, pythons: tuple[str, ...]) -> None:
    release = FakeRelease(wheels=())
    projects: Projects = {"winlib": {"305": release, "306": release}, "user": {"1": [f"winlib{pin}"]}}
    found = answer(projects, f"winlib{pin}" if asked == "winlib" else asked, pythons=pythons)
    assert isinstance(found, Conflict)
    texts = [item.text for item in found.core]
    assert any("no file for Linux" in text for text in texts), texts
    assert not any("uploaded" in text or "Python" in text for text in texts), texts


class _Unreadable(FakeIndexes):
    """Indexes whose releases cannot be read, except those whose version ends with ``.1``."""

    def __init__(self, projects: Projects, problem: str) -> None:
        super().__init__(projects)
        self.problem = problem
        self.tried: list[str] = []

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        self.tried.append(files[0].name)
        name = files[0].name
        if name.startswith("bad-") and not name.removeprefix("bad-").startswith("0."):
            if self.problem == "broken":
                msg = f"{name} is broken."
                raise SourceError(msg)
            return None
        return super().metadata(files, listed)


@pytest.mark.parametrize("problem", ["broken", "none"])
@pytest.mark.parametrize("asked", ["bad", "user"])
@pytest.mark.parametrize("releases", [1, 3, 40])
def test_few_unreadable_releases_of_a_project_are_read(problem: str, asked: str, releases: int) -> None:
    numbers = [str(number) for number in range(1, releases + 1)]
    indexes = _Unreadable({"bad": versions("0.1", *numbers), "user": {"1": ["bad"]}}, problem)
    found = answer(indexes, asked)
    read = {name for name in indexes.tried if name.startswith("bad-")}
    assert len(read) <= 6
    if releases <= 3:
        assert isinstance(found, Resolution)
        assert found.version_of("bad") == "0.1"
        for number in numbers:
            assert any(f"bad {number} was skipped" in text for text in found.warnings), found.warnings
    else:
        assert isinstance(found, Conflict)
        assert any("cannot be read" in item.text for item in found.core), found.core


@pytest.mark.parametrize("problem", ["broken", "none"])
def test_unreadable_project_does_not_stop_others(problem: str) -> None:
    """A release that requires an unreadable project gives way to an older one that does not."""
    indexes = _Unreadable(
        {"bad": versions(*map(str, range(1, 40))), "user": {"2": ["bad"], "1": []}}, problem
    )
    assert chosen(indexes, "user") == {"user": "1"}
    assert len({name for name in indexes.tried if name.startswith("bad-")}) <= 6


# Distributions of the catalog that only metadata requires.


def _late(catalog: Catalog) -> list[str]:
    names = closed_names(catalog, "rocm") - {"torch", "python"}
    return sorted(name for name in names - {"torchaudio", "torchvision", "vllm"} if catalog.package.get(name))


LATE = _late(load())


@pytest.mark.parametrize("name", LATE)
def test_late_distribution_of_catalog_is_resolved_as_if_requested(name: str, catalog: Catalog) -> None:
    """With the Python given, metadata gives the version of the request, unless it is from years ago."""
    at = {"day": "2026-11-01"}
    direct = resolve(catalog, ask(catalog, f"{name} python==3.12", **at), FakeIndexes({}))  # type: ignore[arg-type]
    indexes = FakeIndexes({"user": {"1": [name]}})
    late = resolve(catalog, ask(catalog, "user python==3.12", **at), indexes)  # type: ignore[arg-type]
    assert isinstance(direct, Resolution) == isinstance(late, Resolution)
    if isinstance(direct, Resolution) and isinstance(late, Resolution):
        if newer := [text for text in direct.warnings if "more than a year or a major version older" in text]:
            (pick,) = (pick for pick in late.picks if pick.name == name)
            assert f"the newest is {name} {pick.version}, which" in newer[0]
            return
        own = {pick.name: pick.key for pick in direct.picks}
        assert {pick.name: pick.key for pick in late.picks if pick.name != "user"} == own


# Minimal conflicts.


def _plain_universe(chance: random.Random) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Return projects that require one another in some versions, and a request."""
    names = "abcd"

    def requirement() -> str:
        limits = [f"<{chance.randint(1, 3)}", f">={chance.randint(1, 3)}", f"=={chance.randint(1, 3)}", ""]
        return chance.choice(names) + chance.choice(limits)

    projects = {
        name: {
            str(number): [requirement() for _ in range(chance.choice([0, 1, 1, 2, 3]))]
            for number in range(1, 4)
        }
        for name in names
    }
    return projects, sorted({requirement() for _ in range(chance.randint(2, 4))})


def _only(core: Sequence[LinkGroup]) -> OpenUniverse:
    """Return the universe that consists of the statements of a core."""
    requires: dict[tuple[str, str], list[str]] = {}
    asked = []
    for link in (link for group in core for link in group.links):
        text = link.predicate.partition(", ")[0]
        if not link.subject:
            asked.append(text.removeprefix("you asked for "))
        else:
            for version in link.version.split(", "):
                requires.setdefault((link.subject, version), []).append(text.removeprefix("requires "))
    projects = {
        name: {
            str(number): FakeRelease(requires=requires.get((name, str(number)), ())) for number in range(1, 4)
        }
        for name in "abcd"
    }
    return OpenUniverse(projects, tuple(asked))


def test_conflicts_are_minimal() -> None:
    """The items of a core conflict, and without any one of them the others have a solution (brute force)."""
    sizes = []
    for seed in range(120):
        projects, asked = _plain_universe(random.Random(seed))
        request = _request(*asked)
        try:
            refuted = Search(_catalog(), request, FakeIndexes(projects)).answer
        except UsageError:
            continue
        if not isinstance(refuted, Refuted):
            continue
        conflict, core = explain_conflict(request, refuted)
        groups = [item for item in core if isinstance(item, LinkGroup)]
        assert len(groups) == len(core), (seed, core)
        assert len(conflict.core) == len(core), (seed, conflict.core)
        assert _only(groups).best() is None, seed
        for group in groups:
            rest = [other for other in groups if other is not group]
            assert _only(rest).best() is not None, (seed, group.item().text)
        sizes.append(len(core))
    assert len(sizes) > 20
    assert max(sizes) >= 4


def test_a_build_for_another_framework_is_chosen_only_beside_it(catalog: Catalog) -> None:
    alone = resolve(catalog, ask(catalog, "horovod", day="2024-10-07"))
    assert isinstance(alone, Conflict)  # not the build that would bring TensorFlow unasked
    named = resolve(catalog, ask(catalog, "horovod[tensorflow]", day="2024-10-07"))
    both = resolve(catalog, ask(catalog, "horovod tensorflow-rocm torch", day="2024-10-07"))
    for found in (named, both):
        assert isinstance(found, Resolution)
        pick = found.pick("horovod")
        assert pick is not None
        assert pick.variant == "tensorflow"
        assert any("horovod.torch" in text for text in found.warnings) is (found is both)
