"""A request for a day has only releases that existed on that day."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog, load
from resolver.facts.incomplete import incomplete_rows
from resolver.model import Conflict, Distribution, Preinstalled, Resolution
from resolver.requirements import PAIRED_WITH_TORCH, TRITON_NAMES
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

DAYS = st.dates(datetime.date(2023, 6, 1), datetime.date(2026, 11, 20))
CPU = {"site": "local", "backend": "cpu", "python": "3.11", "glibc": "2.36"}
OWN = """
[[package]]
name = "newext"
title = "An extension"
status = "observed"
source = "here"

[[release]]
version = "1.0"
wheel = { file = "newext-1.0-py3-none-any.whl", sha256 = "0" }
status = "observed"
source = "here"
"""


def _released(catalog: Catalog, pick: Distribution) -> datetime.date | None:
    """Return the day of a pick: its own, or that of the oldest torch that it was published with."""
    row = catalog.release.get((pick.name, pick.version, pick.variant))
    if row is not None:
        return row.released
    days = [
        torch.released
        for torch in catalog.torch.values()
        if pick.version
        in {torch.version, torch.torchvision, torch.torchaudio, torch.triton.partition("==")[2]}
    ]
    return min(day for day in days if day)


@settings(max_examples=12)
@given(
    day=DAYS,
    names=st.sets(
        st.sampled_from(
            ["torch", "torchvision", "apex", "deepspeed", "flash-attn", "bitsandbytes", "xformers", "vllm"]
        ),
        min_size=1,
        max_size=3,
    ),
    cpu=st.booleans(),
    prefer=st.sampled_from(["advised", "newest", "oldest", "proven"]),
)
def test_no_pick_is_newer_than_the_day(
    day: datetime.date, names: set[str], cpu: bool, prefer: str, catalog: Catalog
) -> None:
    options = CPU if cpu else {}
    answer = resolve(catalog, ask(catalog, " ".join(sorted(names)), day=str(day), prefer=prefer, **options))  # type: ignore[arg-type]
    if isinstance(answer, Resolution):
        dated: dict[str, datetime.date | None] = {
            str(pick): _released(catalog, pick)
            for pick in answer.picks
            if pick.name in {*PAIRED_WITH_TORCH, *TRITON_NAMES, *catalog.package}
            if pick.kind == "distribution"
        }
        target = answer.target
        if target.rocm:
            dated["rocm"] = catalog.rocm[target.rocm].released
        if target.python and not cpu:  # the Python of this machine is not chosen
            dated["python"] = catalog.python[target.python].released
        assert {name: known for name, known in dated.items() if (known or datetime.date.max) > day} == {}


def test_newer_version_is_refused_with_its_day(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch==2.6.0", day="2025-01-28", **CPU))  # type: ignore[arg-type]
    assert isinstance(answer, Conflict)
    asked, reason = (item.text for item in answer.core)
    assert asked == "you asked for torch==2.6.0"
    assert reason.startswith("torch 2.6.0+cpu was released on 2025-01-29, after 2025-01-28")
    answer = resolve(catalog, ask(catalog, "torch==2.6.0", day="2025-01-29", **CPU))  # type: ignore[arg-type]
    assert isinstance(answer, Resolution)


def test_installed_version_may_be_newer(catalog: Catalog) -> None:
    request = ask(catalog, "torch", day="2025-01-28", **CPU)  # type: ignore[arg-type]
    kept = replace(request, preinstalled=Preinstalled("list.txt", {"torch": "2.6.0+cpu"}))
    answer = resolve(catalog, kept)
    assert isinstance(answer, Resolution)
    assert answer.version_of("torch") == "2.6.0+cpu"


@pytest.mark.parametrize("dated", [False, True])
def test_release_without_date_needs_a_request_without_date(
    dated: bool, overlay: Callable[[str], Path]
) -> None:
    catalog = load([overlay(OWN)])
    answer = resolve(catalog, replace(ask(catalog, "newext"), dated=dated))
    assert isinstance(answer, Conflict) == dated
    if isinstance(answer, Conflict):
        assert any("newext 1.0 has no known release date" in item.text for item in answer.core)


def test_shipped_release_without_date_is_incomplete(catalog: Catalog) -> None:
    assert list(incomplete_rows(catalog)) == []
    for kind in ("release", "torch", "rocm", "python"):
        rows = getattr(catalog, kind)
        key, row = next(iter(rows.items()))
        undated = replace(row, released=None)
        ((found, text, _),) = incomplete_rows(replace(catalog, **{kind: {**rows, key: undated}}))
        assert found is undated
        assert text.endswith("has no release date")
        own = replace(undated, from_file="/elsewhere/x.toml")
        assert list(incomplete_rows(replace(catalog, **{kind: {**rows, key: own}}))) == []


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("rocm==6.2.4", "rocm 6.2.4 was released on 2024-11-06, after 2024-10-15"),
        ("python==3.14.*", "python 3.14 was released on 2025-10-07, after 2024-10-15"),
    ],
)
def test_newer_platform_is_refused_with_its_day(requirement: str, reason: str, catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, f"torch {requirement}", site="lumi-g", day="2024-10-15"))
    assert isinstance(answer, Conflict)
    assert any(item.text.startswith(reason) for item in answer.core), answer.core


@pytest.mark.parametrize("site", ["lumi-g", "frontier"])
def test_documented_site_gets_no_old_combination_without_a_warning(site: str, catalog: Catalog) -> None:
    """Whatever one package is asked for, a torch or ROCm of years ago is named."""
    day, warned = datetime.date(2026, 11, 20), 0
    for name in catalog.package:
        answer = resolve(catalog, ask(catalog, name, site=site, day=str(day)))
        if not isinstance(answer, Resolution):
            continue
        text = " ".join(item for item in answer.warnings if item.startswith("This is an old combination"))
        days = {f"rocm {version}": row.released for version, row in catalog.rocm.items()}
        days |= {f"torch {version}": row.released for version, row in catalog.torch.items()}
        old = [str(pick) for pick in answer.picks if (day - days.get(str(pick), day)).days > 1000]  # type: ignore[operator]
        assert [pick for pick in old if pick not in text] == [], name
        warned += bool(text)
    assert warned


def test_old_release_is_named_if_a_newer_one_exists(overlay: Callable[[str], Path]) -> None:
    """A bound that is too wide must not let a release of years ago pass silently."""
    newer = OWN.partition("[[release]]")[2].replace("1.0", "2.0")
    known = 'status = "observed"\nsource = "here"\n'
    limit = f'[[requires]]\nreleases = "==2.0"\non = "torch"\nversions = ["==99"]\n{known}'
    dated = OWN.replace('version = "1.0"', 'version = "1.0"\nreleased = 2021-01-01')
    newer = newer.replace('version = "2.0"', 'version = "2.0"\nreleased = 2026-01-01')
    catalog = load([overlay(f"{dated}\n[[release]]{newer}\n{limit}")])
    answer = resolve(catalog, ask(catalog, "newext", day="2026-11-20"))
    assert isinstance(answer, Resolution)
    (text,) = [item for item in answer.warnings if item.startswith("This is an old combination")]
    assert "newext 1.0 is from 2021-01-01 (newest: 2.0, 2026-01-01)" in text
    pinned = resolve(catalog, ask(catalog, "newext==1.0", day="2026-11-20"))
    assert isinstance(pinned, Resolution)
    assert not any(item.startswith("This is an old combination") for item in pinned.warnings)


def test_old_release_without_upper_bound_is_incomplete(catalog: Catalog) -> None:
    key = next(key for key in catalog.release if key[:2] == ("flash-attn", "2.0.4"))
    unbounded = [
        replace(row, variant=None, releases="==2.0.4", versions=(">=1.12.1",), status="documented")
        if row.package == "flash-attn" and row.variant == key[2] and row.on == "torch"
        else replace(row, versions=(">=5.4",))
        if row.package == "flash-attn" and row.releases == "==2.0.4" and row.on == "rocm"
        else row
        for row in catalog.requires
    ]
    only = replace(catalog, requires=unbounded, release={key: catalog.release[key]})
    ((row, text, _),) = incomplete_rows(only)
    assert row is catalog.release[key]
    assert "has no upper bound on torch or ROCm, and its newest torch is 2.2" in text


def test_the_age_of_a_release_that_the_catalog_lacks_is_not_that_of_another(catalog: Catalog) -> None:
    """Its facts are those of the nearest older release, but not its day."""
    tags = ["cp312-cp312-manylinux2014_x86_64", "cp311-cp311-manylinux2014_x86_64"]
    known = {
        "cupy": {"13.3.9": FakeRelease(sdist=True, wheels=())},
        "numpy": {"1.26.4": FakeRelease(wheels=tags)},
        "simulation": {"1.0": FakeRelease(requires=["cupy>13.2,<13.4"])},
    }
    answer = resolve(
        catalog, ask(catalog, "simulation", site="frontier", day="2026-11-20"), FakeIndexes(known)
    )
    assert isinstance(answer, Resolution), answer
    assert answer.version_of("cupy") == "13.3.9"
    assert "cupy 13.3.9 is from" not in " ".join(answer.warnings)
