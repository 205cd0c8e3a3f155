"""The shipped catalog is valid, and an invalid overlay is rejected with location and hint."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name

from resolver.compiling import compile_problem
from resolver.errors import CatalogError
from resolver.facts import catalog_files
from resolver.facts.catalog import Catalog, load, shipped_files
from resolver.facts.catalog_files import read_file
from resolver.facts.schema import KINDS, Recipe, Requires
from resolver.versions import minor, sort_key
from tests.resolver.solve_helpers import ask

Overlay = Callable[[str], Path]

KNOWN = 'status = "documented"\nsource = "somewhere"\n'
PACKAGE = f'[[package]]\nname = "newext"\ntitle = "An extension"\n{KNOWN}'
RELEASE = f'[[release]]\nversion = "1.0"\nsdist = {{ file = "f", sha256 = "0" }}\n{KNOWN}'
TORCH = (
    f'[[torch]]\nversion = "9.0+rocm6.4"\nbackend = "rocm"\nindex = "https://i"\npython = ["3.12"]\n{KNOWN}'
)
ROCM = f'[[rocm]]\nversion = "{{}}"\n{KNOWN}'
IMAGE = f'[[image]]\nname = "new.sif"\nos = "Debian 12"\n{KNOWN}'


# The shipped catalog.


def test_shipped_catalog_has_rows_of_every_kind(catalog: Catalog) -> None:
    assert [kind for kind in KINDS if not catalog.of_kind(kind)] == []
    assert sum(len(catalog.of_kind(kind)) for kind in KINDS) == len(list(catalog.rows()))


def test_shipped_rows_have_status_source_and_location(catalog: Catalog) -> None:
    rows = list(catalog.rows())
    assert [row for row in rows if row.status not in {"documented", "observed", "inferred"}] == []
    assert [row for row in rows if not row.source.strip()] == []


def _unknown(names: Iterable[str], known: Iterable[str]) -> set[str]:
    return set(names) - set(known)


def test_shipped_rows_name_known_components(catalog: Catalog) -> None:
    gfx = {name for row in catalog.rocm.values() for name in row.gfx}
    gfx |= {name for row in catalog.torch.values() for name in row.gfx}
    gfx |= {name for row in catalog.site.values() for name in row.gfx}
    gfx |= {name for row in catalog.requires if row.on == "gfx" for name in row.versions}
    assert _unknown(gfx, catalog.gfx) == set()
    lines = {minor(version) for version in catalog.rocm}
    assert (
        _unknown((row.rocm for row in catalog.image.values() if row.rocm), {*catalog.rocm, *lines}) == set()
    )
    assert _unknown((row.driver for row in catalog.window.values()), catalog.driver) == set()
    assert _unknown((row.site for row in catalog.proven.values() if row.site), catalog.site) == set()


def test_torch_wheels_name_known_pythons(catalog: Catalog) -> None:
    assert _unknown((name for row in catalog.torch.values() for name in row.python), catalog.python) == set()


def test_kernel_modules_name_known_drivers(
    catalog: Catalog,
) -> None:
    strangers = [row for row in catalog.driver_module.values() if minor(row.driver) not in catalog.driver]
    assert [row.driver for row in strangers if "not in AMD's table" not in row.note] == []


def test_torch_wheels_name_known_rocm_releases(catalog: Catalog) -> None:
    lines = {minor(version) for version in catalog.rocm}
    needed = {minor(row.rocm) for row in catalog.torch.values() if row.rocm}
    assert needed - lines <= {"5.1"}


@pytest.mark.slow
def test_picks_of_tier_1_sets_are_candidates(catalog: Catalog) -> None:
    for proven in [row for row in catalog.proven.values() if row.tier == 1]:
        requirements = " ".join(name for name in proven.picks if name != "base-image")
        variables = compile_problem(catalog, ask(catalog, requirements)).variables
        for name, key in proven.picks.items():
            assert key in [candidate.key for candidate in variables[name].candidates], (proven.id, name)


def test_releases_have_sources_and_rows_have_releases(catalog: Catalog) -> None:
    releases = catalog.release.values()
    assert [
        release
        for release in releases
        if not release.is_published
        and not any(catalog.recipe_for(release, backend) for backend in release.backend)
    ] == []
    rows: list[Requires | Recipe] = [*catalog.requires, *catalog.recipe]
    assert [row for row in rows if not any(row.applies_to(release) for release in releases)] == []
    assert _unknown(catalog.package, (release.package for release in releases)) == set()


def test_recipes_have_valid_build_requirements(catalog: Catalog) -> None:
    for recipe in catalog.recipe:
        names = {canonicalize_name(Pep508(text).name) for text in (*recipe.declared, *recipe.undeclared)}
        assert set(recipe.match_runtime) <= names, recipe.source


def test_recipes_state_time_and_memory_and_where_they_are_from() -> None:
    for path in map(Path, shipped_files()):
        for recipe in tomllib.loads(path.read_text(encoding="utf-8")).get("recipe", ()):
            origin = f"{recipe['note']} {recipe['source']}"
            assert recipe["core-hours"] > 0 < recipe["memory-per-job"], path
            assert re.search(r"[Mm]emory|Gi?B", origin), (path, recipe)
            assert re.search(r"\btook\b|[Tt]ime|hours|minute|\d s\b", origin), (path, recipe)


def test_driver_windows_have_no_gaps(catalog: Catalog) -> None:
    windows = catalog.windows_of("lumi-g")
    assert [window.until for window in windows[:-1]] == [window.since for window in windows[1:]]
    assert windows[-1].until is None


def test_load_reads_every_shipped_file(catalog: Catalog) -> None:
    assert load() == catalog
    assert {Path(path).name for path in shipped_files()} >= {
        "driver.toml",
        "lumi-g.toml",
        "apex.toml",
        "proven.toml",
    }


def test_driver_table_covers_every_rocm_line(catalog: Catalog) -> None:
    newer = {"10.1"}  # only its installation guide mentions a driver
    lines = {line for row in catalog.driver.values() for line in row.unsupported}
    lines |= {line for row in catalog.driver.values() if row.unsupported for line in row.supports}
    lines -= newer
    assert len(lines) == 17
    table = [row for row in catalog.driver.values() if row.unsupported]
    assert {row.version for row in catalog.driver.values()} - {row.version for row in table} == {"5.2"}
    assert len(table) * len(lines) == 255
    for row in table:
        assert sorted({*row.supports, *row.unsupported} - newer) == sorted(lines), row.version


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
def test_driver_table_has_amds_values(driver: str, rocm: str, marked: bool, catalog: Catalog) -> None:
    row = catalog.driver[driver]
    assert (rocm in row.supports, rocm in row.unsupported) == (marked, not marked)


def test_public_images_name_their_registry(catalog: Catalog) -> None:
    public = [row for row in catalog.image.values() if row.name.startswith("rocm/")]
    assert len(public) > 100
    assert [row.name for row in public if row.path != f"docker://{row.name}"] == []
    others = [row for row in catalog.image.values() if "://" in row.path and row not in public]
    assert [row.name for row in others if row.rocm] == []
    digests = [row.digest for row in public if row.digest]
    assert [digest for digest in digests if not re.fullmatch("sha256:[0-9a-f]{64}", digest)] == []
    assert len(set(digests)) == len(digests)


def test_preferred_public_images_have_no_torch(catalog: Catalog) -> None:
    first: dict[str, str] = {}
    held = [row for row in catalog.image.values() if row.rocm]
    for row in sorted(held, key=lambda row: sort_key(row.rocm), reverse=True):
        if row.path.startswith("docker://rocm/"):
            first.setdefault(minor(row.rocm), row.name)
    assert [name for name in first.values() if catalog.image[name].holds] == []


def test_images_contain_torch_for_their_own_rocm(catalog: Catalog) -> None:
    holding = [row for row in catalog.image.values() if "torch" in row.holds]
    assert len(holding) > 60
    for row in holding:
        wheel = catalog.torch.get(row.holds["torch"])
        assert row.python, row.name
        assert wheel is None or minor(wheel.rocm) == minor(row.rocm), row.name


def test_sites_have_partitions(catalog: Catalog) -> None:
    backends: dict[str, dict[str, str]] = {}
    for row in catalog.partition.values():
        backends.setdefault(row.site, {})[row.name] = row.backend
    assert {"standard-g", "small-g", "dev-g"} <= backends["lumi-g"].keys()
    assert set(backends["lumi-g"].values()) == {"rocm"}
    assert {"standard", "small", "debug"} <= backends["lumi-c"].keys()
    assert {"standard", "highmem", "serial"} <= backends["archer2-cpu"].keys()
    assert backends["archer2"]["gpu"] == "rocm"
    assert set(backends["lumi-c"].values()) | set(backends["archer2-cpu"].values()) == {"cpu"}


# Overlays.


def test_overlay_replaces_and_adds_rows(catalog: Catalog, overlay: Overlay) -> None:
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


@pytest.mark.slow
def test_last_overlay_wins_and_directories_are_read(tmp_path: Path, catalog: Catalog) -> None:
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


def test_package_name_defaults_to_the_files_package(overlay: Overlay) -> None:
    assert [release.version for release in load([overlay(PACKAGE + RELEASE)]).releases_of("newext")] == [
        "1.0"
    ]


def test_package_names_are_normalized(overlay: Overlay) -> None:
    path = overlay((PACKAGE + RELEASE).replace("newext", "New_Ext"))
    assert [release.version for release in load([path]).releases_of("new-ext")] == ["1.0"]


# Invalid rows and files.


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
    "a table instead of an array of tables": (
        f'[rocm]\nversion = "6.9.0"\n{KNOWN}',
        ["overlay.toml", "rocm", "`array`"],
        "",
    ),
    "a number instead of an array of tables": (
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
    "a wheel without tags": (
        f'{PACKAGE}[[release]]\nversion = "1.0"\nwheel = {{ file = "newext.whl", sha256 = "1" }}\n{KNOWN}',
        ["newext 1.0", "'newext.whl' is not the name of a wheel"],
        "",
    ),
    "no source of a release": (
        f'{PACKAGE}[[release]]\nversion = "1.0"\n{KNOWN}',
        ["newext 1.0", "exactly one"],
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "words", "hint"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_invalid_row_is_rejected_with_location_and_hint(
    rows: str, words: list[str], hint: str, overlay: Overlay
) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(rows)])
    assert [word for word in words if word not in failure.value.message] == []
    assert hint in failure.value.hint
    assert failure.value.exit_code == 2


BAD_VALUES = {
    "required versions": _requires('on = "torch"\nversions = ["abc"]'),
    "the releases of a row": _requires('on = "torch"\nreleases = "abc"\nversions = [">=2"]'),
    "a required component": _requires('on = "abc"\nversions = [">=2"]'),
    "a package that requires itself": _requires('on = "abc"\nversions = ["==2.0"]', package="abc"),
    "a build requirement": f'{PACKAGE}{RELEASE}[[recipe]]\nbackend = "rocm"\nundeclared = ["?abc"]\n{KNOWN}',
    "the ROCm of a torch wheel": f'{TORCH}rocm = "abc"\n',
    "the triton of a torch wheel": f'{TORCH}rocm = "6.4"\ntriton = "?abc"\n',
    "the glibc of a torch wheel": f'{TORCH}rocm = "6.4"\nglibc = "abc"\n',
    "the ROCm of an image": f'{IMAGE}rocm = "abc"\nglibc = "2.36"\n',
    "a line that a driver supports": f'[[driver]]\nversion = "6.3"\nsupports = ["abc"]\n{KNOWN}',
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", BAD_VALUES.values(), ids=BAD_VALUES)
def test_invalid_value_is_rejected_on_load(rows: str, overlay: Overlay) -> None:
    with pytest.raises(CatalogError, match="abc"):
        load([overlay(rows)])


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        pytest.param(TORCH, "9.0+rocm6.4", id="a ROCm build of torch without its ROCm line"),
        pytest.param(
            f'[[driver]]\nversion = "6.3"\nsupports = []\n{KNOWN}', "6.3", id="a driver without ROCm lines"
        ),
    ],
)
def test_incomplete_row_is_rejected(rows: str, word: str, overlay: Overlay) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(rows)])
    assert word in failure.value.message


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "no schema version"),
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
def test_invalid_file_is_rejected(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(CatalogError) as failure:
        read_file(path)
    assert str(path) in failure.value.message
    assert word in failure.value.message


def test_missing_file_and_empty_directory_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "nowhere.toml", empty):
        with pytest.raises(CatalogError) as failure:
            load([path])
        assert str(path) in failure.value.message


def test_oversized_file_is_rejected(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    path = overlay(ROCM.format("6.9.0"))
    monkeypatch.setattr(catalog_files, "_LARGEST_FILE", path.stat().st_size)
    assert read_file(path).rocm[0].version == "6.9.0"
    monkeypatch.setattr(catalog_files, "_LARGEST_FILE", path.stat().st_size - 1)
    with pytest.raises(CatalogError, match="is larger than"):
        read_file(path)


@pytest.mark.slow
def test_invalid_overlay_leaves_catalog_unchanged(catalog: Catalog, overlay: Overlay) -> None:
    with pytest.raises(CatalogError):
        load([overlay(ROCM.format("6.9.0") + ROCM.format("six"))])
    assert load() == catalog


# The torch wheels.

TORCH_KEYS = ("glibc", "cxx_standard")
UNKNOWN_TORCH_KEYS = {
    "2.3.0+rocm6.2.0": {"glibc", "cxx_standard"},
    "2.12.0+git6bbd260": {"glibc"},
    "2.13.0+git733fca1": {"glibc"},
}
"""torch versions with keys that are neither documented nor observed."""


def test_torch_wheels_have_build_facts(catalog: Catalog) -> None:
    silent = {
        row.version: {name for name in TORCH_KEYS if not getattr(row, name)} for row in catalog.torch.values()
    }
    assert {version: names for version, names in silent.items() if names} == UNKNOWN_TORCH_KEYS


TRITON = "pytorch-triton-rocm"
PUBLISHED = {
    "1.13.1+rocm5.2": ("", "0.14.1+rocm5.2", "3.10", "2.17", "14"),
    "2.1.2+rocm5.6": (f"{TRITON}==2.1.0", "0.16.2+rocm5.6", "3.11", "2.17", "17"),
    "2.3.1+rocm6.0": (
        f'{TRITON}==2.3.1; python_version<"3.12"',
        "0.18.1+rocm6.0",
        "3.12",
        "2.17",
        "17",
    ),
    "2.4.1+rocm6.1": (f"{TRITON}==3.0.0", "0.19.1+rocm6.1", "3.12", "2.17", "17"),
    "2.5.1+rocm6.2": (f"{TRITON}==3.1.0", "0.20.1+rocm6.2", "3.12", "2.17", "17"),
    "2.6.0+rocm6.2.4": (
        f"{TRITON}==3.2.0",
        "0.21.0+rocm6.2.4",
        "3.13",
        "2.28",
        "17",
    ),
    "2.7.1+rocm6.3": (f"{TRITON}==3.3.1", "0.22.1+rocm6.3", "3.13", "2.28", "17"),
    "2.8.0+rocm6.4": (f"{TRITON}==3.4.0", "0.23.0+rocm6.4", "3.13", "2.28", "17"),
    "2.9.1+rocm6.4": (f"{TRITON}==3.5.1", "0.24.1+rocm6.4", "3.14", "2.28", "17"),
    "2.10.0+rocm7.1": ("triton-rocm==3.6.0", "0.25.0+rocm7.1", "3.14", "2.28", "17"),
    "2.13.0+rocm7.2": ("triton-rocm==3.7.1", "0.28.0+rocm7.2", "3.14", "2.28", "17"),
}
"""Triton, torchvision, newest Python, platform tag and oldest C++ standard of some torch versions."""


def test_published_rocm_wheels_have_known_companions(catalog: Catalog) -> None:
    ours = [row for row in catalog.torch.values() if row.index.startswith("https://download.pytorch.org/")]
    assert len({(row.version, row.rocm) for row in ours if row.backend == "rocm"}) == 58
    rows = {version: catalog.torch[version] for version in PUBLISHED}
    assert {
        version: (
            row.triton,
            row.torchvision,
            row.python[-1],
            row.glibc,
            row.cxx_standard,
        )
        for version, row in rows.items()
    } == PUBLISHED


def test_torch_versions_have_a_cpu_build(catalog: Catalog) -> None:
    rows = catalog.torch.values()
    for_rocm = {row.version.partition("+")[0] for row in rows if row.backend == "rocm"}
    for_cpu = {row.version.partition("+")[0]: row for row in rows if row.backend == "cpu"}
    assert for_rocm <= for_cpu.keys()
    assert {row.version.partition("+")[2] for row in for_cpu.values()} == {"cpu"}


def test_rocm_of_each_torch_is_listed() -> None:
    """A torch for a ROCm that the catalog lacks was refused without a reason: 1.13 for ROCm 5.1."""
    catalog = load()
    listed = {minor(version) for version in catalog.rocm}
    assert {
        row.version for row in catalog.torch.values() if row.rocm and minor(row.rocm) not in listed
    } == set()
