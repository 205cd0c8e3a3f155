"""Without a fact of the shipped catalog, a refusal stays one, or the answer says what is not known.

Not covered, or only in part:

- Without the row, some facts about Python and glibc are only on the package index: Requires-Python, and the
  tags of files that the catalog does not name. So an answer without an index does not know them.
- Pythons that a build is known to work with. Its source has no such limit.
- Some packages have one row about the GPU architectures of all releases. Without it, they are like apex and
  deepspeed, whose sources have no such limit. They are builds, and the audit of the wheel checks its code.
- A *known-bad* row is the only sign that a combination fails. Without it, the answer is what other facts with
  sources allow, and no warning can say that something is missing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import Search
from resolver.errors import MatrixError
from resolver.facts import schema
from resolver.facts.catalog import Catalog
from resolver.model import Request, Resolution
from resolver.versions import satisfies
from tests.resolver.solve_helpers import ask, requirement
from tests.support.indexes import FakeIndexes, FakeRelease

DAY = "2026-11-26"
DRIVERS = ("6.3", "6.4", "30.30")


def outcome(catalog: Catalog, request: Request, indexes: FakeIndexes | None = None) -> Resolution | None:
    """Return the answer; None if the request is refused."""
    try:
        found = Search(catalog, request, indexes).answer
    except MatrixError:
        return None
    return found if isinstance(found, Resolution) else None


def is_marked(answer: Resolution, name: str) -> bool:
    """Return whether an answer says that something about a distribution, or about the platform, is open."""
    pick = answer.pick(name)
    words = (f"{name} ", "at your own risk", "is not known")
    return (
        pick is None
        or pick.support == "inferred"
        or any(word in text for word in words for text in answer.warnings)
    )


def known(catalog: Catalog, component: str) -> Collection[str]:
    """Return the versions of a component in the catalog; none for one that no request of this test pins."""
    versions: dict[str, Collection[str]] = {
        "torch": catalog.torch,
        "rocm": catalog.rocm,
        "gfx": catalog.gfx,
        "python": catalog.python,
        "glibc": sorted({row.glibc for row in catalog.image.values() if row.glibc}),
    }
    return versions.get(component, ())


def allows(row: schema.Requires, version: str) -> bool:
    return any(version == text or (row.on != "gfx" and satisfies(version, text)) for text in row.versions)


def index_of(catalog: Catalog, row: schema.Requires, release: schema.Release) -> FakeIndexes:
    """Return an index with what a row says of the files of a release: a stand-in for the row's source."""
    tags, requires_python = ["py3-none-any"], ""
    if release.wheel:
        tags = ["-".join(release.wheel.file.removesuffix(".whl").split("-")[-3:])]
        requires_python = row.versions[0] if row.on == "python" else ""
    elif row.on == "python":
        pythons = [version.replace(".", "") for version in catalog.python if allows(row, version)]
        tags = [f"cp{python}-cp{python}-manylinux_2_17_x86_64" for python in pythons]
    else:
        tags = [f"py3-none-manylinux_{row.versions[0].removeprefix('>=').replace('.', '_')}_x86_64"]
    files = FakeRelease(wheels=tags, requires_python=requires_python)
    return FakeIndexes({"numpy": {"1.26.4": []}, release.package: {release.version: files}})


def against(catalog: Catalog, row: schema.Requires, rng: random.Random) -> Request | None:
    """Return a request that a row may refuse; None if there is none."""
    releases = [
        one for one in catalog.releases_of(row.package) if row.applies_to(one) and "rocm" in one.backend
    ]
    bad = [version for version in known(catalog, row.on) if not allows(row, version)]
    if not releases or not bad or row.package == "torch":
        return None
    release, version, driver = rng.choice(releases), rng.choice(bad), rng.choice(DRIVERS)
    text = f"torch {row.package}=={release.version}"
    if row.on != "gfx":
        text += f" {row.on}=={version}"
    gfx = [version] if row.on == "gfx" else ["gfx90a"]
    return ask(catalog, text, site="local", backend="rocm", day=DAY, gfx=gfx, driver=driver)


@pytest.mark.slow
def test_removed_requirement_gives_no_unmarked_answer(catalog: Catalog) -> None:
    rng = random.Random(27)
    freed = compared = 0
    rows = [row for row in catalog.requires if row.backend != "cpu"]
    of_files = [row for row in rows if row.on in {"python", "glibc"}]
    for row in (*rng.sample(rows, 120), *of_files):
        request = against(catalog, row, rng)
        if request is None or outcome(catalog, request) is not None:
            continue
        less = replace(catalog, requires=[other for other in catalog.requires if other is not row])
        answer = outcome(less, request)
        if answer is None:
            continue
        freed += 1
        if is_marked(answer, row.package):
            continue
        pick, rocm = answer.pick(row.package), answer.pick("rocm")
        assert pick is not None
        if rocm and rocm.version not in {image.rocm for image in catalog.image.values()}:
            continue  # the index of `index_of` has no ROCm of pip
        if row.on in {"python", "glibc"} and pick.origin == "published":
            (release,) = (one for one in catalog.releases_of(pick.name) if one.version == pick.version)
            assert row.on == "python" or not (release.wheel or release.wheels), row
            index = index_of(less, row, release)
            fitting = [version for version in known(catalog, row.on) if allows(row, version)]
            asked = request.requirements[:-1]
            pins = [(*asked, requirement(f"{row.on}=={version}")) for version in fitting]
            assert any(outcome(less, replace(request, requirements=pinned), index) for pinned in pins), row
            assert outcome(less, request, index) is None, row
            compared += 1
            continue
        if row.on == "python":
            assert pick.origin == "build", row
            continue
        assert (row.on, pick.origin) == ("gfx", "build"), row
        assert [one for one in catalog.requires if (one.package, one.on) == (row.package, "gfx")] == [row]
    assert freed > 20
    assert compared > 5


@pytest.mark.slow
def test_answer_without_a_known_bad_row_rests_on_other_facts(catalog: Catalog) -> None:
    rng = random.Random(27)
    freed = 0
    for key, row in catalog.known_bad.items():
        if row.effect not in {"refuse", "unpublished"} or row.backend == "cpu":
            continue
        texts = [
            f"{name}{specifier}" for name, specifier in row.combination.items() if name != "kernel-driver"
        ]
        try:
            request = ask(
                catalog,
                " ".join(texts),
                site=row.site or "local",
                backend="rocm",
                day=DAY,
                gfx=row.gfx[:1] or ["gfx90a"],
                driver=rng.choice(DRIVERS),
            )
        except MatrixError:
            continue
        less = replace(
            catalog, known_bad={name: one for name, one in catalog.known_bad.items() if name != key}
        )
        answer = outcome(less, request)
        if answer is None or outcome(catalog, request) is not None:
            continue
        freed += 1
        for name in row.combination:
            pick = answer.pick(name)
            assert pick is not None
            assert pick.facts, (row, pick)
            assert all(fact.source for fact in pick.facts), (row, pick)
    assert freed > 3


def without_one(catalog: Catalog, rng: random.Random) -> Iterator[Catalog]:
    """Yield catalogs, each without one row about the platform."""
    for kind in ("rocm", "driver", "gfx", "python", "torch", "window", "site_image"):
        rows = getattr(catalog, kind)
        for key in rng.sample(sorted(rows), min(4, len(rows))):
            yield replace(catalog, **{kind: {name: row for name, row in rows.items() if name != key}})


@pytest.mark.slow
def test_removed_row_about_the_platform_frees_nothing(catalog: Catalog) -> None:
    """An answer without the row, with its versions pinned, is also one with it, or it is marked."""
    rng = random.Random(27)
    names = sorted({row.package for row in catalog.release.values() if "rocm" in row.backend})
    compared = 0
    for less in without_one(catalog, rng):
        for text in ("torch", f"torch rocm=={rng.choice(sorted(catalog.rocm))}"):
            request = ask(
                catalog, f"{text} {rng.choice(names)}", site=rng.choice(["lumi-g", "frontier"]), day=DAY
            )
            answer = outcome(less, request)
            if answer is None:
                continue
            compared += 1
            pinned = [
                pick
                for pick in answer.picks
                if pick.kind == "distribution" or pick.name in {"rocm", "python"}
            ]
            pins = tuple(requirement(f"{pick.name}=={pick.version}") for pick in pinned)
            same = outcome(catalog, replace(request, requirements=pins))
            assert same is not None or is_marked(answer, "rocm"), pins
    assert compared > 20


def test_image_without_its_glibc_is_marked(catalog: Catalog) -> None:
    name = "rocm/dev-centos-7:6.3.1-complete"
    request = ask(
        catalog,
        "torch==2.9.1",
        site="local",
        backend="rocm",
        day=DAY,
        gfx=["gfx90a"],
        driver="6.3",
        base_image=name,
    )
    assert outcome(catalog, request) is None
    less = replace(catalog, image={**catalog.image, name: replace(catalog.image[name], glibc="")})
    answer = outcome(less, request)
    assert answer is not None
    assert any(f"The glibc of {name} is not known" in warning for warning in answer.warnings)
