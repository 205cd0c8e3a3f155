"""Without a fact of the shipped catalog, a refusal stays one, or the answer says what is not known."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import solve
from resolver.errors import MatrixError
from resolver.facts import schema
from resolver.facts.catalog import Catalog, applies
from resolver.model import Request, Resolution
from resolver.versions import satisfies
from tests.resolver.solve_helpers import ask, requirement

DAY = "2026-11-26"
DRIVERS = ("6.3", "6.4", "30.30")
ONLY_GFX = {"grouped-gemm", "megablocks"}
"""Packages of which one row has the GPU architectures of all releases: the audit of the built wheel checks
them, and without this row they are like apex and deepspeed, whose sources have no such limit."""


def outcome(catalog: Catalog, request: Request) -> Resolution | None:
    """Return the answer; None if the request is refused."""
    try:
        found = solve(catalog, request, None)
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


def against(catalog: Catalog, row: schema.Requires, rng: random.Random) -> Request | None:
    """Return a request that a row may refuse; None if there is none."""
    releases = [
        one for one in catalog.releases_of(row.package) if applies(row, one) and "rocm" in one.backend
    ]
    # Python is left out, because an index has Requires-Python.
    known: dict[str, Collection[str]] = {"torch": catalog.torch, "rocm": catalog.rocm, "gfx": catalog.gfx}
    bad = [
        version
        for version in known.get(row.on, ())
        if not any(version == text or (row.on != "gfx" and satisfies(version, text)) for text in row.versions)
    ]
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
    freed = 0
    for row in rng.sample([row for row in catalog.requires if row.backend != "cpu"], 120):
        request = against(catalog, row, rng)
        if request is None or outcome(catalog, request) is not None:
            continue
        less = replace(catalog, requires=[other for other in catalog.requires if other is not row])
        answer = outcome(less, request)
        if answer is None:
            continue
        freed += 1
        assert is_marked(answer, row.package) or (row.on == "gfx" and row.package in ONLY_GFX), row
    assert freed > 10


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
