"""Every catalogued release, with the extras that its metadata may have, at every site: an answer or a reason.

The metadata are not those of PyPI but drawn, so that they also hold what real ones may have tomorrow:
requirements on other packages of the catalog, on CUDA, on nothing that an index has, and in markers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import cycle

import pytest

from resolver.answers.resolve import Search
from resolver.errors import InternalError, MatrixError, NoVersionError
from resolver.facts.catalog import Catalog, is_elsewhere
from resolver.facts.schema import Release
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

EXTRAS = ("all", "dev", "gpu")
DAYS = ("2025-10-15", "2026-06-01", "2026-11-28")
PARTS = 8


def _requirement(catalog: Catalog, chance: random.Random) -> str:
    others = ["torch", "triton", "numpy", "nvidia-cublas-cu12", "nowhere"]
    name = chance.choice([chance.choice([*catalog.package]), chance.choice(others), "helper", "helper"])
    versions = [row.version for row in catalog.releases_of(name)] or ["1.0", "2.5"]
    limit = chance.choice(["", "", "", ">={}", "<{}", "=={}"]).format(chance.choice(versions))
    extra = chance.choice(["", "", "", "[all]"])
    return f"{name}{extra}{limit}".partition("+")[0]


def _metadata(catalog: Catalog, chance: random.Random) -> FakeRelease:
    own = [_requirement(catalog, chance) for _ in range(chance.choice([0, 0, 1]))]
    markers = ["", "", " and python_version < '3.13'", " and sys_platform == 'linux'"]
    of_extras = [
        f"{_requirement(catalog, chance)} ; extra == '{extra}'{chance.choice(markers)}"
        for extra in EXTRAS
        for _ in range(chance.choice([1, 2]))
    ]
    wheels = chance.choice([("py3-none-any",), ("cp312-cp312-manylinux_2_28_x86_64",), ()])
    static = chance.random() < 0.3  # few sdists on PyPI have static metadata
    return FakeRelease(requires=(*own, *of_extras), extras=EXTRAS, wheels=wheels, sdist=True, static=static)


def _indexes(catalog: Catalog, chance: random.Random) -> FakeIndexes:
    """Return an index that has what the catalog says comes from an index, and a release that it lacks."""
    projects = {"helper": {version: _metadata(catalog, chance) for version in ("1.0", "2.0")}}
    for name in catalog.package:
        rows = [row for row in catalog.releases_of(name) if row.git is None and not is_elsewhere(row)]
        versions = dict.fromkeys(row.version for row in rows if not row.variant and "+" not in row.version)
        if versions:
            projects[name] = {version: _metadata(catalog, chance) for version in (*versions, "99.0")}
    return FakeIndexes(projects)


def _requests(catalog: Catalog) -> Iterator[tuple[str, str, str]]:
    """Yield each release as a requirement, alone and with an extra; sites and days take turns."""
    sites, days, extras = cycle(sorted(catalog.site)), cycle(DAYS), cycle(EXTRAS)
    for row in catalog.release.values():
        for named in _named(row, next(extras)):
            yield named, next(sites), next(days)


def _named(row: Release, extra: str) -> list[str]:
    if row.variant:
        return [f"{row.package}[{row.variant}]=={row.version}"]
    return [f"{row.package}=={row.version}", f"{row.package}[{extra}]=={row.version}"]


def test_release_that_the_catalog_lacks_has_an_answer_or_a_reason(catalog: Catalog) -> None:
    """Ask for a release after all, and for one before all, of every package that has releases on an index."""
    kinds = Counter[str]()
    for name in catalog.package:
        rows = [row for row in catalog.releases_of(name) if row.git is None and not is_elsewhere(row)]
        release = FakeRelease(wheels=("py3-none-any",) if rows and not rows[0].sdist else (), sdist=True)
        indexes = FakeIndexes({name: {"99.0": release, "0.0.0.1": release}} if rows else {})
        for version in ("99.0", "0.0.0.1"):
            try:
                answer = Search(
                    catalog, ask(catalog, f"{name}=={version}", site="lumi-g", day=DAYS[-1]), indexes
                ).answer
                kinds[type(answer).__name__] += 1
            except NoVersionError:
                kinds["none"] += 1
    assert kinds["Resolution"] > kinds["Refuted"], kinds


@pytest.mark.parametrize(
    "part", [pytest.param(n, marks=[pytest.mark.slow] if n else []) for n in range(PARTS)]
)
def test_every_release_has_an_answer_or_a_reason(part: int, catalog: Catalog) -> None:
    chance = random.Random(part)
    indexes = _indexes(catalog, chance)
    failed, kinds = [], Counter[str]()
    for text, site, day in [*_requests(catalog)][part::PARTS]:
        try:
            kinds[type(Search(catalog, ask(catalog, text, site=site, day=day), indexes).answer).__name__] += 1
        except InternalError as error:
            failed.append(f"{text} at {site} on {day}: {error.message}")
        except MatrixError as error:
            kinds[type(error).__name__] += 1
    assert not failed
    assert min(kinds["Resolution"], kinds["Refuted"]) > len(kinds), kinds
