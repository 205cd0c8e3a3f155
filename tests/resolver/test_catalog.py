"""The shipped catalog is sound, and a broken overlay is refused with the place and what was meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name

from resolver.compiling import compile_problem
from resolver.errors import CatalogError
from resolver.facts import catalog_files
from resolver.facts.catalog import Catalog, applies, recipe_for
from resolver.facts.catalog_files import read_file
from resolver.facts.loading import load, shipped_files
from resolver.facts.schema import KINDS, Recipe, Requires
from resolver.versions import minor, sort_key
from tests.resolver.asking import ask

Overlay = Callable[[str], Path]

KNOWN = 'status = "documented"\nsource = "somewhere"\n'
PACKAGE = f'[[package]]\nname = "newext"\ntitle = "An extension"\n{KNOWN}'
RELEASE = f'[[release]]\nversion = "1.0"\nsdist = {{ file = "f", sha256 = "0" }}\n{KNOWN}'
TORCH = f'[[torch]]\nversion = "9.0+rocm6.4"\nbackend = "rocm"\nindex = "i"\npython = ["3.12"]\n{KNOWN}'
ROCM = f'[[rocm]]\nversion = "{{}}"\n{KNOWN}'
IMAGE = f'[[image]]\nname = "new.sif"\nos = "Debian 12"\n{KNOWN}'


# What is shipped.


def test_the_shipped_catalog_holds_rows_of_every_kind(catalog: Catalog) -> None:
    assert [kind for kind in KINDS if not catalog.of_kind(kind)] == []
    assert sum(len(catalog.of_kind(kind)) for kind in KINDS) == len(list(catalog.rows()))


def test_every_row_says_how_well_it_is_known_and_where_it_stands(catalog: Catalog) -> None:
    rows = list(catalog.rows())
    assert [row for row in rows if row.status not in {"documented", "observed", "inferred"}] == []
    assert [row for row in rows if not row.source.strip()] == []


def _unknown(named: Iterable[str], known: Iterable[str]) -> set[str]:
    return set(named) - set(known)


def test_rows_name_only_components_that_the_catalog_has(catalog: Catalog) -> None:
    gfx = {name for row in catalog.rocm.values() for name in row.gfx}
    gfx |= {name for row in catalog.torch.values() for name in row.gfx}
    gfx |= {name for row in catalog.site.values() for name in row.gfx}
    gfx |= {name for row in catalog.requires if row.on == "gfx" for name in row.versions}
    assert _unknown(gfx, catalog.gfx) == set()
    assert _unknown((row.rocm for row in catalog.image.values() if row.rocm), catalog.rocm) == set()
    assert _unknown((row.driver for row in catalog.window.values()), catalog.driver) == set()
    assert _unknown((row.site for row in catalog.proven.values() if row.site), catalog.site) == set()


def test_every_python_that_a_torch_wheel_is_for_is_a_component(catalog: Catalog) -> None:
    assert _unknown((name for row in catalog.torch.values() for name in row.python), catalog.python) == set()


def test_every_driver_that_a_kernel_module_belongs_to_is_in_the_table_or_said_not_to_be(
    catalog: Catalog,
) -> None:
    strangers = [row for row in catalog.driver_module.values() if minor(row.driver) not in catalog.driver]
    assert [row.driver for row in strangers if "not in AMD's table" not in row.note] == []


def test_every_torch_wheel_fits_a_rocm_release_unless_its_rocm_is_older_than_all(catalog: Catalog) -> None:
    lines = {minor(version) for version in catalog.rocm}
    wanted = {minor(row.rocm) for row in catalog.torch.values() if row.rocm}
    assert wanted - lines <= {"5.1"}


def test_every_pick_of_a_proven_set_of_tier_1_is_a_candidate(catalog: Catalog) -> None:
    for proven in [row for row in catalog.proven.values() if row.tier == 1]:
        wanted = " ".join(name for name in proven.picks if name != "base-image")
        variables = compile_problem(catalog, ask(catalog, wanted)).variables
        for name, key in proven.picks.items():
            assert key in [one.key for one in variables[name].candidates], (proven.id, name)


def test_every_release_can_be_had_and_every_row_of_a_package_speaks_of_one(catalog: Catalog) -> None:
    releases = catalog.release.values()
    assert [
        one
        for one in releases
        if not (one.wheel or one.pypi)
        and not any(recipe_for(catalog, one, backend) for backend in one.backend)
    ] == []
    rows: list[Requires | Recipe] = [*catalog.requires, *catalog.recipe]
    assert [row for row in rows if not any(applies(row, one) for one in releases)] == []
    assert _unknown(catalog.package, (one.package for one in releases)) == set()


def test_what_recipes_build_with_can_be_read_and_torch_is_said_where_it_must_match(catalog: Catalog) -> None:
    for recipe in catalog.recipe:
        names = {canonicalize_name(Pep508(text).name) for text in (*recipe.declared, *recipe.undeclared)}
        assert set(recipe.match_runtime) <= names, recipe.source


def test_windows_of_a_site_follow_one_another_without_a_gap(catalog: Catalog) -> None:
    windows = catalog.windows_of("lumi-g")
    assert [one.until for one in windows[:-1]] == [one.since for one in windows[1:]]
    assert windows[-1].until is None


def test_two_loads_are_equal_and_every_shipped_file_is_read(catalog: Catalog) -> None:
    assert load() == catalog
    assert {Path(path).name for path in shipped_files()} >= {
        "driver.toml",
        "lumi-g.toml",
        "apex.toml",
        "proven.toml",
    }


def test_each_line_of_the_driver_in_amd_s_table_speaks_of_every_line_of_rocm(catalog: Catalog) -> None:
    lines = {line for row in catalog.driver.values() for line in row.unsupported}
    lines |= {line for row in catalog.driver.values() if row.unsupported for line in row.supports}
    assert len(lines) == 17
    table = [row for row in catalog.driver.values() if row.unsupported]
    assert {row.version for row in catalog.driver.values()} - {row.version for row in table} == {"5.2"}
    assert len(table) * len(lines) == 255
    for row in table:
        assert sorted([*row.supports, *row.unsupported]) == sorted(lines), row.version


@pytest.mark.parametrize(
    ("driver", "rocm", "marked"),
    [
        ("6.3", "7.0", True),
        ("6.3", "7.1", False),
        ("6.3", "6.0", False),
        ("6.2", "7.0", True),
        ("6.1", "7.0", False),
        ("6.4", "7.2", True),
        ("6.4", "7.14", False),
        ("30.10", "6.2", True),
        ("30.20", "6.2", False),
        ("30.30", "6.3", True),
        ("31.40", "6.4", False),
        ("31.50", "10.0", True),
        ("5.3", "5.1", True),
        ("5.3", "5.6", False),
    ],
)
def test_cells_of_amd_s_table_are_as_printed(driver: str, rocm: str, marked: bool, catalog: Catalog) -> None:
    row = catalog.driver[driver]
    assert (rocm in row.supports, rocm in row.unsupported) == (marked, not marked)


def test_every_image_that_anybody_can_pull_says_from_which_registry(catalog: Catalog) -> None:
    public = [row for row in catalog.image.values() if row.name.startswith("rocm/")]
    assert len(public) > 100
    assert [row.name for row in public if row.path != f"docker://{row.name}"] == []
    others = [row for row in catalog.image.values() if "://" in row.path and row not in public]
    assert [row.name for row in others if row.rocm] == []
    digests = [row.digest for row in public if row.digest]
    assert [digest for digest in digests if not re.fullmatch("sha256:[0-9a-f]{64}", digest)] == []
    assert len(set(digests)) == len(digests)


def test_of_each_rocm_line_the_newest_public_image_that_is_taken_first_has_no_torch(catalog: Catalog) -> None:
    first: dict[str, str] = {}
    held = [row for row in catalog.image.values() if row.rocm]
    for row in sorted(held, key=lambda row: sort_key(row.rocm), reverse=True):
        if row.path.startswith("docker://rocm/"):
            first.setdefault(minor(row.rocm), row.name)
    assert [name for name in first.values() if catalog.image[name].holds] == []


def test_an_image_holds_a_torch_of_its_own_rocm_and_python(catalog: Catalog) -> None:
    holding = [row for row in catalog.image.values() if "torch" in row.holds]
    assert len(holding) > 60
    for row in holding:
        wheel = catalog.torch.get(row.holds["torch"])
        assert row.python, row.name
        assert wheel is None or minor(wheel.rocm) == minor(row.rocm), row.name


def test_sites_have_their_partitions(catalog: Catalog) -> None:
    found: dict[str, dict[str, str]] = {}
    for row in catalog.partition.values():
        found.setdefault(row.site, {})[row.name] = row.backend
    assert {"standard-g", "small-g", "dev-g"} <= found["lumi-g"].keys()
    assert set(found["lumi-g"].values()) == {"rocm"}
    assert {"standard", "small", "debug"} <= found["lumi-c"].keys()
    assert {"standard", "highmem", "serial"} <= found["archer2-cpu"].keys()
    assert found["archer2"]["gpu"] == "rocm"
    assert set(found["lumi-c"].values()) | set(found["archer2-cpu"].values()) == {"cpu"}


# Overlays.


def test_an_overlay_overrides_a_row_and_adds_a_row(catalog: Catalog, overlay: Overlay) -> None:
    again = load(
        [
            overlay(
                f'[[driver]]\nversion = "6.3"\nsupports = ["7.1"]\n{KNOWN}'
                f"{ROCM.format('6.9.0')}"
                f'[[requires]]\npackage = "apex"\non = "rocm"\nversions = [">=6.4"]\n{KNOWN}'
            )
        ]
    )
    assert again.driver["6.3"].supports == ("7.1",)
    assert again.driver.keys() == catalog.driver.keys()
    assert again.rocm.keys() - catalog.rocm.keys() == {"6.9.0"}
    assert len(again.requires) == len(catalog.requires) + 1
    assert again.torch == catalog.torch


def test_of_several_overlays_the_last_wins_and_a_directory_is_read_whole(
    tmp_path: Path, catalog: Catalog
) -> None:
    for name, driver in (("a/x.toml", "6.3"), ("a/deep/y.toml", "6.4"), ("b/z.toml", "6.3")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        supported = {"a": "6.1", "b": "6.3"}[name[0]]
        path.write_text(f'schema = 1\n[[driver]]\nversion = "{driver}"\nsupports = ["{supported}"]\n{KNOWN}')
    (tmp_path / "b" / "notes.txt").write_text("not a catalog file")
    assert load([tmp_path / "a", tmp_path / "b"]).driver["6.3"].supports == ("6.3",)
    turned = load([tmp_path / "b", tmp_path / "a"]).driver
    assert (turned["6.3"].supports, turned["6.4"].supports) == (("6.1",), ("6.1",))
    assert catalog.driver["6.3"].supports == ("6.1", "6.2", "6.3", "6.4", "7.0")


def test_rows_of_a_file_with_one_package_belong_to_it(overlay: Overlay) -> None:
    assert [one.version for one in load([overlay(PACKAGE + RELEASE)]).releases_of("newext")] == ["1.0"]


def test_a_package_may_be_written_with_any_spelling_of_its_name(overlay: Overlay) -> None:
    path = overlay((PACKAGE + RELEASE).replace("newext", "New_Ext"))
    assert [one.version for one in load([path]).releases_of("new-ext")] == ["1.0"]


# What is refused.


def _window(site: str, driver: str) -> str:
    return f'[[window]]\nsite = "{site}"\nfrom = 2020-01-01\ndriver = "{driver}"\n{KNOWN}'


def _site_image(keys: str) -> str:
    return f'[[site-image]]\nsite = "lumi-g"\n{keys}\n{KNOWN}'


def _requires(keys: str, package: str = "newext") -> str:
    return f"{PACKAGE}{RELEASE}[[requires]]\n{keys}\n{KNOWN}".replace("newext", package)


BAD_ROWS = {
    "an unknown key": (
        f"{ROCM.format('6.8.0')}# a comment\n{ROCM.format('6.9.0')}notes = 1\n",
        ["overlay.toml:11: ", "[[rocm]]", "6.9.0", "unknown key 'notes'"],
        "Did you mean note?",
    ),
    "an unknown key in a kind of two words": (
        _site_image('immage = "x"'),
        ["overlay.toml:4: ", "[[site-image]]", "immage"],
        "Did you mean image?",
    ),
    "an unknown kind of row": (
        f'[[dirver]]\nversion = "6.3"\n{KNOWN}',
        ["overlay.toml", "dirver"],
        "Did you mean driver?",
    ),
    "a key that is missing": (
        f'[[driver]]\nversion = "6.3"\n{KNOWN}',
        ["overlay.toml:2: ", "[[driver]]", "6.3", "required key 'supports' is missing"],
        'Add supports = ["..."].',
    ),
    "a row without a source": (
        '[[rocm]]\nversion = "6.9.0"\nstatus = "observed"',
        ["overlay.toml:2: ", "[[rocm]]", "required key 'source' is missing"],
        'Add source = "..." with the URL or the file',
    ),
    "a row without a status": (
        '[[rocm]]\nversion = "6.9.0"\nsource = "s"',
        ["overlay.toml:2: ", "[[rocm]]", "required key 'status' is missing"],
        'Add status = "documented" (or observed, inferred).',
    ),
    "a wrong type": (
        f"[[rocm]]\nversion = 6.9\n{KNOWN}",
        ["overlay.toml:3: ", "[[rocm]]", "version", "`str`", "`float`"],
        "Put the value in quotes.",
    ),
    "a row where rows belong": (
        f'[rocm]\nversion = "6.9.0"\n{KNOWN}',
        ["overlay.toml", "rocm", "`array`"],
        "",
    ),
    "a number where rows of a package belong": (
        f"release = 5\n{PACKAGE}",
        ["overlay.toml", "release", "`array`"],
        "",
    ),
    "a bad status": (
        '[[rocm]]\nversion = "6.9.0"\nstatus = "believed"\nsource = "s"',
        ["overlay.toml:4: ", "[[rocm]]", "6.9.0", "status", "believed"],
        "documented, observed, inferred",
    ),
    "a misspelt status": (
        '[[rocm]]\nversion = "6.9.0"\nstatus = "observd"\nsource = "s"',
        ["overlay.toml:4: ", "status", "observd"],
        "Did you mean observed?",
    ),
    "a bad backend": (
        TORCH.replace('"rocm"', '"cuda"'),
        ["overlay.toml:4: ", "[[torch]]", "backend", "cuda"],
        "rocm, cpu",
    ),
    "a bad backend among several": (
        f'{PACKAGE}{RELEASE}backend = ["rocm", "cpus"]',
        ["[[release]]", "cpus"],
        "Did you mean cpu?",
    ),
    "a backend of another kind of row": (
        _requires('on = "torch"\nversions = [">=2"]\nbackend = "rocn"'),
        ["backend", "rocn"],
        "Did you mean rocm?",
    ),
    "a version that cannot be ordered": (ROCM.format("six"), ["overlay.toml:3: ", "'six'"], ""),
    "an unknown site": (_window("lumi-gg", "6.0"), ["overlay.toml:2: ", "'lumi-gg'"], "Did you mean lumi-g?"),
    "an unknown driver": (_window("lumi-g", "6.9"), ["'6.9'"], "6.3"),
    "an unknown image": (
        _site_image('image = "lumi-rocm-rocm-6.2.5.sif"'),
        ["'lumi-rocm-rocm-6.2.5.sif'"],
        "lumi-rocm-rocm-6.2.4.sif",
    ),
    "an unknown package": (
        f'[[requires]]\npackage = "apx"\non = "torch"\nversions = [">=2"]\n{KNOWN}',
        ["'apx'"],
        "Did you mean apex?",
    ),
    "two sources of a release": (
        f'{PACKAGE}{RELEASE}wheel = {{ file = "g", sha256 = "1" }}',
        ["newext 1.0", "exactly one"],
        "",
    ),
    "no source of a release": (
        f'{PACKAGE}[[release]]\nversion = "1.0"\n{KNOWN}',
        ["newext 1.0", "exactly one"],
        "",
    ),
}


@pytest.mark.parametrize(("rows", "named", "hint"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_refused_with_its_place(
    rows: str, named: list[str], hint: str, overlay: Overlay
) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(rows)])
    assert [word for word in named if word not in failure.value.message] == []
    assert hint in failure.value.hint
    assert failure.value.exit_code == 2


BAD_VALUES = {
    "versions that are required": _requires('on = "torch"\nversions = ["abc"]'),
    "releases that a row speaks of": _requires('on = "torch"\nreleases = "abc"\nversions = [">=2"]'),
    "a component that is required": _requires('on = "abc"\nversions = [">=2"]'),
    "a package that requires itself": _requires('on = "abc"\nversions = ["==2.0"]', package="abc"),
    "a build requirement": f'{PACKAGE}{RELEASE}[[recipe]]\nbackend = "rocm"\nundeclared = ["?abc"]\n{KNOWN}',
    "the ROCm of a torch wheel": f'{TORCH}rocm = "abc"\n',
    "the triton of a torch wheel": f'{TORCH}rocm = "6.4"\ntriton = "?abc"\n',
    "the glibc of a torch wheel": f'{TORCH}rocm = "6.4"\nglibc = "abc"\n',
    "the ROCm of an image": f'{IMAGE}rocm = "abc"\nglibc = "2.36"\n',
    "a line that a driver supports": f'[[driver]]\nversion = "6.3"\nsupports = ["abc"]\n{KNOWN}',
}


@pytest.mark.parametrize("rows", BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_means_nothing_is_refused_before_anything_is_resolved(
    rows: str, overlay: Overlay
) -> None:
    with pytest.raises(CatalogError, match="abc"):
        load([overlay(rows)])


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        pytest.param(TORCH, "9.0+rocm6.4", id="a ROCm build of torch that does not say of which ROCm"),
        pytest.param(
            f'[[driver]]\nversion = "6.3"\nsupports = []\n{KNOWN}', "6.3", id="a driver for nothing"
        ),
    ],
)
def test_a_row_that_says_too_little_is_refused(rows: str, named: str, overlay: Overlay) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(rows)])
    assert named in failure.value.message


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "schema = None"),
        (b"schema = 2\n", "schema = 2"),
        (b'schema = "1"\n', "schema = '1'"),
        (b"schema = true\n", "bool"),
        (b"schema = 1\nx = [", "not valid TOML"),
        (b"schema = 1\n[[rocm]]\nversion = 1\nversion = 2\n", "not valid TOML"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "not"),
        (b"schema = 1\n# \xff\xfe\n", "not UTF-8"),
        (b"schema = 1\nfrom = 2025-13-45\n", "not valid TOML"),
        pytest.param(b"schema = 1\nx = " + b"[" * 20_000, "not valid TOML", id="deeply nested"),
        pytest.param(b"schema = 1\nx = " + b"9" * 5_000, "not valid TOML", id="a very long number"),
    ],
)
def test_a_file_that_is_no_catalog_is_refused(content: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(CatalogError) as failure:
        read_file(path)
    assert str(path) in failure.value.message
    assert named in failure.value.message


def test_a_missing_file_and_an_empty_directory_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "nowhere.toml", empty):
        with pytest.raises(CatalogError) as failure:
            load([path])
        assert str(path) in failure.value.message


def test_a_file_larger_than_any_catalog_is_not_read(
    overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = overlay(ROCM.format("6.9.0"))
    monkeypatch.setattr(catalog_files, "_LARGEST_FILE", path.stat().st_size)
    assert read_file(path).rocm[0].version == "6.9.0"
    monkeypatch.setattr(catalog_files, "_LARGEST_FILE", path.stat().st_size - 1)
    with pytest.raises(CatalogError, match="is larger than"):
        read_file(path)


def test_a_broken_overlay_leaves_nothing_behind(catalog: Catalog, overlay: Overlay) -> None:
    with pytest.raises(CatalogError):
        load([overlay(ROCM.format("6.9.0") + ROCM.format("six"))])
    assert load() == catalog


# The torch wheels.

SAID_OF_TORCH = ("platform_tag", "cxx_standard", "bundles_rocm")
NOT_KNOWN = {"2.3.0+rocm6.2.0": {"bundles_rocm", "cxx_standard"}}
"""Versions of torch with what nobody documented and nobody looked up of them."""


def test_every_torch_says_what_it_is_compiled_for_or_is_listed_as_not_known(catalog: Catalog) -> None:
    silent = {
        row.version: {
            name
            for name in SAID_OF_TORCH
            if getattr(row, name) in {None, ""} and (row.rocm or name != "bundles_rocm")
        }
        for row in catalog.torch.values()
    }
    assert {version: names for version, names in silent.items() if names} == NOT_KNOWN


TRITON = "pytorch-triton-rocm"
PUBLISHED = {
    "1.13.1+rocm5.2": ("", "0.14.1+rocm5.2", "3.10", "linux_x86_64", "14"),
    "2.1.2+rocm5.6": (f"{TRITON}==2.1.0", "0.16.2+rocm5.6", "3.11", "linux_x86_64", "17"),
    "2.3.1+rocm6.0": (
        f'{TRITON}==2.3.1; python_version<"3.12"',
        "0.18.1+rocm6.0",
        "3.12",
        "linux_x86_64",
        "17",
    ),
    "2.4.1+rocm6.1": (f"{TRITON}==3.0.0", "0.19.1+rocm6.1", "3.12", "linux_x86_64", "17"),
    "2.5.1+rocm6.2": (f"{TRITON}==3.1.0", "0.20.1+rocm6.2", "3.12", "linux_x86_64", "17"),
    "2.6.0+rocm6.2.4": (
        f"{TRITON}==3.2.0",
        "0.21.0+rocm6.2.4",
        "3.13",
        "manylinux_2_28_x86_64",
        "17",
    ),
    "2.7.1+rocm6.3": (f"{TRITON}==3.3.1", "0.22.1+rocm6.3", "3.13", "manylinux_2_28_x86_64", "17"),
    "2.8.0+rocm6.4": (f"{TRITON}==3.4.0", "0.23.0+rocm6.4", "3.13", "manylinux_2_28_x86_64", "17"),
    "2.9.1+rocm6.4": (f"{TRITON}==3.5.1", "0.24.1+rocm6.4", "3.14", "manylinux_2_28_x86_64", "17"),
    "2.10.0+rocm7.1": ("triton-rocm==3.6.0", "0.25.0+rocm7.1", "3.14", "manylinux_2_28_x86_64", "17"),
    "2.13.0+rocm7.2": ("triton-rocm==3.7.1", "0.28.0+rocm7.2", "3.14", "manylinux_2_28_x86_64", "17"),
}
"""Triton, torchvision, newest Python, platform tag and oldest C++ standard of some of them."""


def test_the_published_rocm_wheels_are_there_with_what_goes_with_each(catalog: Catalog) -> None:
    ours = [row for row in catalog.torch.values() if row.index.startswith("https://download.pytorch.org/")]
    assert len({(row.version, row.rocm) for row in ours if row.backend == "rocm"}) == 58
    rows = {version: catalog.torch[version] for version in PUBLISHED}
    assert {
        version: (
            row.triton,
            row.torchvision,
            row.python[-1],
            row.platform_tag,
            row.cxx_standard,
        )
        for version, row in rows.items()
    } == PUBLISHED
    assert {row.bundles_rocm for row in rows.values()} == {True}
    assert [row.version for row in ours if row.bundles_rocm is False] == [
        "2.14.0+rocm7.14",
        "2.14.1+rocm7.14",
    ]


def test_every_torch_from_1_13_on_has_a_build_for_the_cpu(catalog: Catalog) -> None:
    rows = catalog.torch.values()
    for_rocm = {row.version.partition("+")[0] for row in rows if row.backend == "rocm"}
    for_cpu = {row.version.partition("+")[0]: row for row in rows if row.backend == "cpu"}
    assert for_rocm <= for_cpu.keys()
    assert {row.version.partition("+")[2] for row in for_cpu.values()} == {"cpu"}
