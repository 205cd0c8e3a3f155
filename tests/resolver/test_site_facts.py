"""Facts about a site: advice, runs outside of AMD's driver table, requirements on the system."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem
from resolver.compiling.problem_builder import is_advised
from resolver.facts.catalog import Catalog, load, within
from resolver.facts.driver import drivers_of_modules
from resolver.model import Conflict, Prefer, Resolution
from resolver.versions import minor, sort_key
from tests.resolver.solve_helpers import ask

Overlay = Callable[[str], Path]
KNOWN = 'status = "observed"\nsource = "somewhere"\n'
TODAY = "2026-11-22"
PACKAGE = f'[[package]]\nname = "newext"\ntitle = "x"\n{KNOWN}'
WHEEL = f'[[release]]\npackage = "newext"\nversion = "1.0"\npypi = true\nbackend = ["rocm", "cpu"]\n{KNOWN}'


def _requires(keys: str) -> str:
    return f'{PACKAGE}{WHEEL}[[requires]]\npackage = "newext"\n{keys}\n{KNOWN}'


def _run(rocm: str, day: str) -> str:
    return (
        f'[[proven]]\nid = "run of {rocm} on {day}"\nsite = "lumi-g"\ndate = {day}\n{KNOWN}'
        f'[proven.picks]\nrocm = "{rocm}"\n'
    )


def _advice(on: str, versions: str, keys: str = "") -> str:
    return f'[[site-advice]]\nsite = "lumi-g"\non = "{on}"\nversions = ["{versions}"]\n{keys}\n{KNOWN}'


# The site's advice.


@pytest.mark.parametrize(("prefer", "line"), [("advised", "6.4"), ("newest", "7.0"), ("oldest", "6.1")])
def test_advice_decides_default_only(prefer: Prefer, line: str, catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch deepspeed", day="2026-06-01", prefer=prefer))
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("rocm")) == line


@pytest.mark.parametrize("site", ["adastra", "dardel", "hunter", "setonix", "tuolumne", "viper"])
def test_unknown_driver_prefers_recorded_then_older_rocm(site: str, catalog: Catalog) -> None:
    variable = compile_problem(catalog, ask(catalog, "torch", site=site, day=TODAY)).variables["rocm"]
    order = [candidate.version for candidate in variable.candidates]
    (advice,) = (row for row in catalog.site_advice.values() if row.site == site and row.on == "rocm")
    recorded = [version for version in order if is_advised(advice, version)]
    assert recorded
    assert order[: len(recorded)] == recorded
    newest = max(recorded, key=sort_key)
    drivers = [catalog.driver[name] for name in drivers_of_modules(catalog, advice.modules)]
    assert drivers
    safe = [
        version
        for version in order
        if sort_key(version) < sort_key(recorded[-1])
        or (version not in recorded and all(minor(version) in driver.supports for driver in drivers))
    ]
    newer = [version for version in order if sort_key(version) > sort_key(newest) and version not in safe]
    assert order == [*recorded, *sorted(safe, key=sort_key, reverse=True), *sorted(newer, key=sort_key)]
    answer = resolve(catalog, ask(catalog, "torch", site=site, day=TODAY))
    assert isinstance(answer, Resolution)
    assert is_advised(advice, answer.version_of("rocm"))


def test_known_driver_does_not_move_newer_rocm(catalog: Catalog) -> None:
    problem = compile_problem(catalog, ask(catalog, "torch", site="setonix", day=TODAY, driver="31.50"))
    order = [candidate.version for candidate in problem.variables["rocm"].candidates]
    rest = [version for version in order if minor(version) != "6.3"]
    assert sort_key(rest[0]) == max(map(sort_key, order))


def test_advice_is_not_a_limit(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch==2.10.*", day="2026-06-01"))
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("rocm")) == "7.0"


def test_followed_advice_is_fact_of_pick(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch deepspeed", day="2026-06-01"))
    assert isinstance(answer, Resolution)
    texts = {pick.name: [fact.text for fact in pick.facts] for pick in answer.picks}
    assert "lumi-g advises rocm 6.4.*" in texts["rocm"]
    assert "lumi-g advises base-image lumi-multitorch-*" in texts["base-image"]


@pytest.mark.parametrize(
    ("keys", "line"),
    [("", "6.2"), ("from = 2026-06-02", "7.0"), ("until = 2026-06-01", "7.0"), ("until = 2026-06-02", "6.2")],
)
def test_advice_has_dates(keys: str, line: str, overlay: Overlay) -> None:
    catalog = load([overlay(_advice("rocm", "==6.2.*", keys).replace('"lumi-g"', '"hill"') + HILL)])
    answer = resolve(catalog, ask(catalog, "rocm", site="hill", day="2026-06-01"))
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("rocm")) == line


HILL = (
    f'[[site]]\nname = "hill"\ntitle = "Hill"\nbackend = "rocm"\ngfx = ["gfx90a"]\n{KNOWN}'
    f'[[window]]\nsite = "hill"\nfrom = 2026-01-01\ndriver = "6.2"\n{KNOWN}'
    f'[[site-advice]]\nsite = "hill"\non = "python"\nversions = ["==3.11.*"]\n{KNOWN}'
    f'[[site-image]]\nsite = "hill"\nimage = "lumi-rocm-rocm-6.2.4.sif"\n{KNOWN}'
)


@pytest.mark.parametrize(("prefer", "python"), [("advised", "3.11"), ("newest", "3.12")])
def test_advised_python_comes_before_that_of_image(prefer: Prefer, python: str, overlay: Overlay) -> None:
    image = "lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif"
    catalog = load([overlay(HILL)])
    assert catalog.image[image].python == ("3.12",)
    request = ask(catalog, "torch", site="hill", base_image=image, driver="6.3", prefer=prefer)
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    assert answer.version_of("python") == python


# Runs outside of AMD's table.


@pytest.mark.parametrize(
    ("ran", "day", "answer"),
    [
        ("2026-09-29", TODAY, Resolution),
        ("2026-09-29", "2026-09-28", Conflict),  # not known yet
        ("2025-12-31", TODAY, Conflict),  # with an older driver
    ],
)
def test_run_allows_rocm_outside_table(ran: str, day: str, answer: type, overlay: Overlay) -> None:
    catalog = load([overlay(_run("7.1.1", ran))])
    result = resolve(catalog, ask(catalog, "rocm==7.1.*", day=day))
    assert isinstance(result, answer)


def test_run_outside_table_warns_and_names_source(overlay: Overlay) -> None:
    catalog = load([overlay(_run("7.1.1", "2026-09-29"))])
    answer = resolve(catalog, ask(catalog, "rocm==7.1.*", day=TODAY))
    assert isinstance(answer, Resolution)
    pick = answer.pick("rocm")
    assert pick is not None
    assert (pick.verdict, pick.support) == ("at-own-risk", "observed")
    text = "lumi-g ran ROCm 7.1 in September 2026, which AMD does not list for driver 6.3"
    assert [fact.source for fact in pick.facts if fact.text == text] == ["somewhere"]
    assert any(text in warning for warning in answer.warnings)


def test_run_outside_table_is_last_choice(overlay: Overlay) -> None:
    catalog = load([overlay(_run("7.1.1", "2026-09-29"))])
    answer = resolve(catalog, ask(catalog, "rocm", day=TODAY, prefer="newest"))
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("rocm")) == "7.0"


def test_run_counts_at_its_site_only(overlay: Overlay) -> None:
    catalog = load([overlay(_run("7.1.1", "2026-09-29"))])
    request = ask(
        catalog, "rocm==7.1.*", site="local", backend="rocm", gfx=["gfx90a"], driver="6.3", day=TODAY
    )
    assert isinstance(resolve(catalog, request), Conflict)


# GPU architectures and drivers.


@pytest.mark.parametrize(
    ("gfx", "driver", "answer"),
    [
        (["gfx950"], "6.4", Conflict),
        (["gfx950"], "30.10", Resolution),
        (["gfx90a", "gfx950"], "6.4", Conflict),
        (["gfx950"], None, Resolution),
        (["gfx942"], "6.4", Resolution),
    ],
)
def test_architecture_requires_driver(
    gfx: list[str], driver: str | None, answer: type, catalog: Catalog
) -> None:
    request = ask(catalog, "rocm", site="local", backend="rocm", gfx=gfx, driver=driver, day=TODAY)
    result = resolve(catalog, request)
    assert isinstance(result, answer)
    if isinstance(result, Conflict):
        assert "gfx950 requires kernel driver >=30.10" in "\n".join(item.text for item in result.core)


# Requirements on the system.


@pytest.mark.parametrize(
    ("on", "versions", "rocm"),
    [
        ("glibc", ">=2.39", "6.4.4"),
        ("libstdcxx", ">=14.1", "6.4.4"),  # its row has 14, which means the last release of 14
        ("kernel-driver", ">=6.3", "6.4.4"),
        ("kernel-driver", ">=6.4", None),
        ("glibc", ">=2.99", None),
        ("libstdcxx", ">=15", None),
    ],
)
def test_wheel_limits_system(on: str, versions: str, rocm: str | None, overlay: Overlay) -> None:
    catalog = load([overlay(_requires(f'on = "{on}"\nversions = ["{versions}"]'))])
    image = "lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif"
    answer = resolve(catalog, ask(catalog, "newext torch", base_image=image, day="2026-06-01"))
    assert (answer.version_of("rocm") if isinstance(answer, Resolution) else None) == rocm
    if isinstance(answer, Conflict):
        assert any(f"requires {on} {versions}" in item.text for item in answer.core), answer.core


def test_undocumented_system_is_not_checked(overlay: Overlay) -> None:
    catalog = load([overlay(_requires('on = "libstdcxx"\nversions = [">=15"]'))])
    assert not catalog.image["lumi-rocm-rocm-6.2.4.sif"].libstdcxx
    request = ask(catalog, "newext torch", base_image="lumi-rocm-rocm-6.2.4.sif")
    assert isinstance(resolve(catalog, request), Resolution)


# Lists of GPU architectures.


@pytest.mark.parametrize(
    ("gfx", "partial", "answer"),
    [
        ("gfx90a", "false", Resolution),
        ("gfx942", "false", Conflict),
        ("gfx942", "true", Resolution),
        ("gfx90a", "true", Resolution),
    ],
)
def test_partial_list_excludes_nothing(gfx: str, partial: str, answer: type, overlay: Overlay) -> None:
    keys = f'on = "gfx"\nversions = ["gfx90a"]\npartial = {partial}'
    catalog = load([overlay(_requires(keys))])
    request = ask(catalog, "newext", site="local", backend="rocm", gfx=[gfx], day=TODAY)
    assert isinstance(resolve(catalog, request), answer)


def test_list_belongs_to_variant(overlay: Overlay) -> None:
    rows = _requires('on = "gfx"\nversions = ["gfx90a"]\nvariant = ""')
    catalog = load([overlay(rows + WHEEL.replace('"1.0"', '"1.0"\nvariant = "other"'))])
    request = ask(catalog, "newext", site="local", backend="rocm", gfx=["gfx1100"], day=TODAY)
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    assert [pick.variant for pick in answer.picks if pick.name == "newext"] == ["other"]


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif", False),
        ("lumi-rocm-rocm-6.2.4.sif", True),
    ],
)
def test_package_that_needs_mpi_warns_without_it(image: str, catalog: Catalog, *, warned: bool) -> None:
    answer = resolve(catalog, ask(catalog, "mpi4py rocm", base_image=image))
    assert isinstance(answer, Resolution)
    assert answer.version_of("base-image") == image
    assert any("is compiled against the MPI" in warning for warning in answer.warnings) is warned


def test_conflict_at_site_without_base_images_names_a_public_one(catalog: Catalog) -> None:
    with_images = {row.site for row in catalog.site_image.values()}
    sites = [
        site
        for site in catalog.site.values()
        if site.backend == "rocm" and site.gfx and site.name not in with_images and not site.public_images
    ]
    assert sites
    for site in sites:
        answer = resolve(catalog, ask(catalog, "torch apex", site=site.name, day=TODAY))
        assert isinstance(answer, Conflict), site.name
        (image,) = [one.request.target.base_image for one in answer.suggestions]
        followed = resolve(catalog, ask(catalog, "torch apex", site=site.name, day=TODAY, base_image=image))
        assert image
        assert isinstance(followed, Resolution)
        recorded = [row for row in catalog.site_advice.values() if row.site == site.name and row.on == "rocm"]
        assert not recorded or is_advised(recorded[0], catalog.image[image].rocm)


# The driver that a site's modules of ROCm leave.

MODULES_OF_LUMI = {
    "2023-05-09": ("5.2",),  # CuPy-12.2.0-cpeGNU-22.09-rocm-5.2.3.eb
    "2023-10-25": ("5.2", "5.4"),  # csc-training/summerschool application-performance/demos/tau: rocm/5.4.6
    "2024-09-01": ("6.0",),  # CuPy-13.2.0-cpeGNU-24.03-rocm.eb with CuPy-13.2.0_rocm-6.patch
    "2025-05-06": ("6.0", "6.2"),  # CuPy-13.2.0-cpeGNU-24.03-rocm6.2.2.eb
    "2025-08-05": ("6.0", "6.2", "6.3"),  # CuPy-13.5.1-cpeGNU-25.03-rocm.eb
    "2026-01-01": ("6.3",),
    "2026-09-29": ("6.3", "6.4"),
}
"""The ROCm lines that LUMI had as modules, from public recipes, by the first day."""


def _day(text: str) -> date:
    return date.fromisoformat(text)


def test_the_drivers_of_lumi_and_frontier_are_among_those_that_their_modules_leave(catalog: Catalog) -> None:
    """Both sites' drivers are known, so they show whether the inference holds."""
    days = [_day(text) for text in MODULES_OF_LUMI]
    for window in catalog.windows_of("lumi-g"):
        for day in (window.since, *(day for day in days if within(window, day))):
            modules = [lines for text, lines in MODULES_OF_LUMI.items() if _day(text) <= day][-1]
            assert window.driver in drivers_of_modules(catalog, modules), (day, modules)
    for window in catalog.windows_of("frontier"):
        # the note has the ROCm that the user guide lists for the day
        line = re.search(r"ROCm (\d+\.\d+)\.\d+", window.note)
        assert line
        assert window.driver in drivers_of_modules(catalog, [line[1]])
    assert drivers_of_modules(catalog, []) == []
    assert drivers_of_modules(catalog, ["5.2", "10.0"]) == []


@pytest.mark.parametrize(
    ("site", "rocm", "said"),
    [
        (
            "tuolumne",
            "7.2",
            "leave drivers 6.4 to 30.30 (inferred from AMD's table). Of these, AMD lists ROCm 7.2 for all.",
        ),
        ("tuolumne", "10.0", "AMD lists ROCm 10.0 for 30.10, 30.20 and 30.30."),
        ("dardel", "5.7", "AMD lists ROCm 5.7 for none."),
        ("beverin", "7.2", "The kernel driver of this target is not known"),
    ],
)
def test_an_answer_names_the_drivers_that_the_modules_leave(
    catalog: Catalog, site: str, rocm: str, said: str
) -> None:
    answer = resolve(catalog, ask(catalog, f"rocm=={rocm}.*", site=site, day=TODAY))
    assert isinstance(answer, Resolution), answer
    assert said in " ".join(answer.warnings)


@pytest.mark.parametrize(
    ("day", "is_old"), [("2026-11-22", True), ("2026-06-01", False), ("2024-01-01", False)]
)
def test_an_answer_from_old_site_rows_says_so(catalog: Catalog, day: str, is_old: bool) -> None:
    answer = resolve(catalog, ask(catalog, "python", site="adastra", day=day))
    assert isinstance(answer, Resolution)
    assert any("What is known of adastra is of 2026-04-01" in text for text in answer.warnings) == is_old
    for site in catalog.site.values():
        if site.backend == "rocm" and site.name != "beverin":
            assert site.seen, site.name
