"""A requested release that is more than a year behind what the site can run is not chosen."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import Search, resolve
from resolver.compiling.known_bad import concerning
from resolver.facts.catalog import Catalog, closed_names
from resolver.indexes import Content
from resolver.model import Conflict, Resolution
from resolver.solving.session import Refuted
from resolver.versions import satisfies, version_key
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

DAY = "2026-11-15"
YEARS = "more than a year or a major version older"
CP312 = ("cp312-cp312-manylinux_2_28_x86_64",)


def answered(catalog: Catalog, text: str, indexes: FakeIndexes, **options: str) -> Resolution:
    answer = resolve(catalog, ask(catalog, text, **{"day": DAY, **options}), indexes)  # type: ignore[arg-type]
    assert isinstance(answer, Resolution), answer
    return answer


def version(answer: Resolution, name: str) -> str:
    return next(pick.version for pick in answer.picks if pick.name == name)


def about_years(answer: Resolution) -> list[str]:
    return [text for text in answer.warnings if YEARS in text or "newer, which" in text]


def speech(*, newest: str = "2026-08-01", version: str = "2.7") -> FakeIndexes:
    """Return a toolkit like NeMo, whose newest release needs a torch that the advised ROCm does not have."""
    return FakeIndexes(
        {
            "speech": {
                "0.11": FakeRelease(requires=["torch"], uploaded="2020-07-11T00:00:00Z"),
                version: FakeRelease(requires=["torch>=2.10"], uploaded=f"{newest}T00:00:00Z"),
                "3.0rc1": FakeRelease(requires=["torch>=2.10"], uploaded="2026-09-01T00:00:00Z"),
            }
        }
    )


def test_platform_yields_to_a_release_that_is_years_newer(catalog: Catalog) -> None:
    answer = answered(catalog, "speech", speech())
    assert version(answer, "speech") == "2.7"
    assert version_key(version(answer, "torch")) >= version_key("2.10")
    (said,) = about_years(answer)
    assert "speech 2.7 was chosen, on ROCm 7" in said
    assert "With ROCm 6.4.4" in said
    assert "the newest is speech 0.11" in said


@pytest.mark.parametrize(
    ("text", "newest", "options"),
    [
        ("speech<2", "2026-08-01", {}),
        ("speech==0.11", "2026-08-01", {}),
        ("speech", "2026-11-20", {}),
        ("speech", "2026-08-01", {"prefer": "oldest"}),
    ],
)
def test_what_the_request_says_is_older_stays(
    catalog: Catalog, text: str, newest: str, options: dict[str, str]
) -> None:
    """So does one beside a release of a later day."""
    answer = answered(catalog, text, speech(newest=newest), **options)
    assert version(answer, "speech") == "0.11"
    assert not about_years(answer)


@pytest.mark.parametrize(
    ("newest", "chosen"), [("0.12", "0.11"), ("1.0", "1.0"), ("2021.7", "0.11")], ids=str
)
def test_release_of_the_same_year_is_far_newer_if_its_major_version_is(
    catalog: Catalog, newest: str, chosen: str
) -> None:
    """The first number may be a year, which says no more than the day does."""
    answer = answered(catalog, "speech", speech(newest="2021-07-11", version=newest))
    assert version(answer, "speech") == chosen
    assert bool(about_years(answer)) == (chosen == newest)


def test_extra_that_newer_releases_lack_is_named(catalog: Catalog) -> None:
    """As `jax[rocm]`."""
    old = FakeRelease(requires=["six ; extra == 'gpu'"], extras=["gpu"], uploaded="2020-07-11T00:00:00Z")
    new = FakeRelease(uploaded="2026-08-01T00:00:00Z")
    indexes = FakeIndexes({"speech": {"0.11": old, "2.7": new}, "six": {"1.17": []}})
    (said,) = about_years(answered(catalog, "speech[gpu]", indexes))
    assert said.endswith("newer, which lack the extra gpu.")


def test_what_only_another_python_needs_is_left_out(catalog: Catalog) -> None:
    releases = {day[:4]: FakeRelease(uploaded=f"{day}T00:00:00Z") for day in ("2016-05-01", "2026-05-01")}
    indexes = FakeIndexes({"compat": releases, "speech": releases})
    answer = answered(catalog, "speech compat;python_version<'3.11'", indexes)
    assert answer.version_of("python") == "3.12"
    assert [pick.name for pick in answer.distributions] == ["speech"]


def test_kept_release_stays(catalog: Catalog) -> None:
    request = ask(catalog, "speech", day=DAY)
    answer = resolve(catalog, request, speech(), keep={"speech": "0.11"})
    assert isinstance(answer, Resolution)
    assert version(answer, "speech") == "0.11"


def test_requirement_that_holds_a_project_back_is_named(catalog: Catalog) -> None:
    answer = answered(catalog, "speech torch==2.7.1", speech())
    assert version(answer, "speech") == "0.11"
    (said,) = about_years(answer)
    assert (
        said
        == f"speech has releases that are {YEARS.replace('older', 'newer')}, which do not fit torch==2.7.1."
    )


def test_what_newer_releases_require_is_named(catalog: Catalog) -> None:
    """As AllenNLP, whose newest release needs a torch that no wheel for ROCm has."""
    old = FakeRelease(requires=["torch"], uploaded="2020-07-11T00:00:00Z")
    new = FakeRelease(requires=["torch<1.13"], uploaded="2022-10-18T00:00:00Z")
    answer = answered(catalog, "texts", FakeIndexes({"texts": {"0.9": old, "2.10": new}}))
    assert version(answer, "texts") == "0.9"
    (said,) = (text for text in answer.warnings if "[years-back]" in f"{text} [{text.id}]")
    assert said.endswith("none of which resolves: texts 2.10 requires torch<1.13.")


def boosted(*, newest: str) -> FakeIndexes:
    """Return a project like sglang, whose newer releases require a distribution for CUDA."""
    old = FakeRelease(uploaded="2025-01-11T00:00:00Z")
    new = FakeRelease(requires=["cuda-python"], uploaded=f"{newest}T00:00:00Z")
    return FakeIndexes({"boosted": {"0.5.2": old, "0.5.23": new}, "cuda-python": {"13": []}})


@pytest.mark.parametrize("extra", ["", "[gpu]"])
def test_releases_of_years_ago_are_refused_if_newer_ones_are_for_cuda(catalog: Catalog, extra: str) -> None:
    indexes = boosted(newest="2026-08-01")
    if extra:
        old = FakeRelease(requires=["six ; extra == 'gpu'"], extras=["gpu"], uploaded="2020-07-11T00:00:00Z")
        new = replace(old, requires=["cuda-python", *old.requires], uploaded="2026-08-01T00:00:00Z")
        indexes = FakeIndexes({"boosted": {"0.5.2": old, "0.5.23": new}, "six": {"1.17": []}})
    conflict = resolve(catalog, ask(catalog, f"boosted{extra}", day=DAY), indexes)
    assert isinstance(conflict, Conflict)
    assert "boosted up to 0.5.2 are more than a year or a major version older than 0.5.23" in str(
        conflict.core
    )
    assert any("cuda-python; sys_platform == 'never'" in text for text in conflict.warnings)
    (offer,) = (one for one in conflict.suggestions if "an older release" in str(one))
    assert f"boosted{extra}==0.5.2" in str(offer)
    pinned = answered(catalog, f"boosted{extra}==0.5.2", indexes)
    assert version(pinned, "boosted") == "0.5.2"


def test_older_release_within_the_bound_is_taken_if_newer_ones_are_for_cuda(catalog: Catalog) -> None:
    answer = answered(catalog, "boosted", boosted(newest="2025-12-01"))
    assert version(answer, "boosted") == "0.5.2"
    assert any("boosted 0.5.2 of 2025-01-11 was chosen" in text for text in answer.warnings)


def test_request_for_a_rocm_keeps_a_release_with_wrong_results(catalog: Catalog) -> None:
    answer = answered(catalog, "bitsandbytes rocm==6.3.*", FakeIndexes({}), site="dardel")
    assert version(answer, "bitsandbytes") == "0.49.2"
    (said,) = (text for text in answer.warnings if "has releases" in text)
    assert (
        said
        == "bitsandbytes has releases that are not known for wrong results, which do not fit rocm==6.3.*."
    )


@pytest.mark.parametrize("site", ["lumi-g", "frontier", "setonix", "dardel", "adastra", "tuolumne"])
def test_release_with_wrong_results_is_not_chosen_if_another_resolves(site: str, catalog: Catalog) -> None:
    """As bitsandbytes 0.49.2 was chosen where the site's ROCm 6.3 comes first."""
    target = ask(catalog, "torch", site=site, day=DAY).target
    rows = [
        row for row in concerning(catalog, target) if row.rank == "wrong results" and row.effect == "warn"
    ]
    for name, bad in ((*row.combination.items(),)[0] for row in rows if len(row.combination) == 1):
        if name == "torch":
            continue
        found = Search(catalog, ask(catalog, name, site=site, day=DAY), FakeIndexes({})).answer
        chosen = found.version_of(name) if isinstance(found, Resolution) else ""
        for row in catalog.releases_of(name) if chosen and satisfies(chosen, bad) else ():
            if (
                not row.variant
                and version_key(row.version) > version_key(chosen)
                and not satisfies(row.version, bad)
            ):
                pinned = ask(catalog, f"{name}=={row.version}", site=site, day=DAY)
                assert isinstance(Search(catalog, pinned, FakeIndexes({})).answer, Refuted), row.version


def test_release_that_was_not_judged_is_taken_instead_of_one_of_years_ago(catalog: Catalog) -> None:
    """DGL's only release that can be judged is from 2018."""
    unread = Content("libgraph.so was not read", unread="libgraph.so (7 MB) was not read")
    graphs = {
        "0.1.3": FakeRelease(uploaded="2018-12-12T00:00:00Z"),
        "2.1.0": FakeRelease(wheels=CP312, content=unread, uploaded="2024-03-05T00:00:00Z"),
    }
    answer = answered(catalog, "graphs", FakeIndexes({"graphs": graphs}))
    assert version(answer, "graphs") == "2.1.0"
    assert any(text.startswith("graphs 2.1.0 was chosen. graphs 0.1.3 would") for text in about_years(answer))
    assert any(text.startswith("Not judged: graphs") for text in answer.warnings)


@pytest.mark.parametrize("limit", ["", " rocm==6.2.*"])
@pytest.mark.parametrize("site", ["lumi-g", "frontier"])
def test_no_package_of_the_catalog_is_years_behind_what_resolves(
    site: str, limit: str, catalog: Catalog
) -> None:
    """Pin every release that is more than a year newer than the chosen one: none resolves."""

    def answer(text: str) -> Resolution | Refuted:
        return Search(catalog, ask(catalog, f"{text}{limit}", site=site, day=DAY), FakeIndexes({})).answer

    pinned, days = (
        0,
        {(row.package, row.version, row.variant): row.released for row in catalog.release.values()},
    )
    for name in sorted(closed_names(catalog, "rocm") & catalog.package.keys() - {"torch", "rccl-net"}):
        found = answer(name)
        picks = found.picks if isinstance(found, Resolution) else ()
        for pick in (pick for pick in picks if pick.name == name):
            day = days.get((name, pick.version, pick.variant))
            for row in catalog.releases_of(name) if day else ():
                if (
                    day
                    and row.released
                    and day + timedelta(days=365) < row.released <= date.fromisoformat(DAY)
                ):
                    is_newer = version_key(row.version) > version_key(pick.version)
                    pinned += is_newer
                    assert not is_newer or isinstance(answer(f"{name}=={row.version}"), Refuted), row
    assert pinned or not limit
