"""Layers of catalog files: precedence, contradictions and includes; messages contain file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resolver.answers.resolve import resolve
from resolver.errors import CatalogError
from resolver.facts.catalog import Catalog, load
from resolver.model import Resolution
from tests.resolver.solve_helpers import ask

KNOWN = 'status = "documented"\nsource = "somewhere"\n'
DRIVER = '[[driver]]\nversion = "6.3"\nsupports = ["{}"]\n' + KNOWN
APEX_ON_ROCM = '[[requires]]\npackage = "apex"\non = "rocm"\nversions = ["{}"]\n' + KNOWN
RELEASE = (
    '[[release]]\nversion = "{}"\ngit = {{ url = "https://example.org/x", commit = "c0ffee" }}\n' + KNOWN
)
SDIST = '[[release]]\nversion = "{}"\nsdist = {{ file = "x-1.tar.gz", sha256 = "{}" }}\n' + KNOWN
PACKAGE = '[[package]]\nname = "newext"\ntitle = "An extension"\n' + KNOWN
WINDOW = '[[window]]\nsite = "archer2"\n{}\ndriver = "{}"\n' + KNOWN
IMAGE = '[[image]]\nname = "{}"\nrocm = "6.2.4"\npath = "/images/one.sif"\n' + KNOWN

Overlay = Callable[[str], Path]


def write(path: Path, rows: str, include: str = "") -> Path:
    """Write a catalog file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema = 1\n{include}\n{rows}")
    return path


# Contradictions.


def test_contradicting_rows_of_a_layer_are_both_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a.toml", DRIVER.format("6.1"))
    second = write(tmp_path / "b.toml", "# a comment\n" + DRIVER.format("6.2"))
    with pytest.raises(CatalogError) as failure:
        load([tmp_path])
    message = failure.value.message
    assert message.startswith(f"{second}:4: [[driver]] 6.3 contradicts {first}:3: supports is ('6.2',) here")
    assert "('6.1',) there" in message


def test_duplicate_row_is_rejected(overlay: Overlay) -> None:
    with pytest.raises(
        CatalogError, match=r"overlay.toml:7: \[\[driver\]\] 6.3 is a duplicate of the row at .*:2"
    ):
        load([overlay(DRIVER.format("6.1") * 2)])


def test_rows_of_two_layers_do_not_contradict(tmp_path: Path) -> None:
    lower = write(tmp_path / "a.toml", DRIVER.format("6.1"))
    upper = write(tmp_path / "b.toml", DRIVER.format("6.2"))
    assert load([lower, upper]).driver["6.3"].supports == ("6.2",)


CONTRADICTIONS = {
    "two drivers on one day": (
        WINDOW.format("from = 2031-01-01\nuntil = 2031-06-01", "6.3")
        + WINDOW.format("from = 2031-05-01", "6.4"),
        ["overlay.toml:9", "overlay.toml:2", "2031-05-01", "2031-06-01"],
    ),
    "a window that ends before it begins": (
        WINDOW.format("from = 2031-01-01\nuntil = 2030-06-01", "6.3"),
        ["overlay.toml:5", "until", "2030-06-01"],
    ),
    "a line both supported and not": (
        f'[[driver]]\nversion = "6.3"\nsupports = ["6.1", "6.2"]\nunsupported = ["6.2"]\n{KNOWN}',
        ["overlay.toml:5", "unsupported", "6.2"],
    ),
    "one path for two images": (
        IMAGE.format("one.sif") + IMAGE.format("two.sif"),
        ["overlay.toml:2", "overlay.toml:8", "one.sif", "two.sif", "the same path"],
    ),
    "two hashes of one file": (
        PACKAGE + SDIST.format("1", "aa") + SDIST.format("1.post1", "bb"),
        ["overlay.toml:7", "overlay.toml:12", "x-1.tar.gz has two hashes"],
    ),
    "two versions of one commit": (
        PACKAGE + RELEASE.format("1") + RELEASE.format("2"),
        ["overlay.toml:7", "overlay.toml:12", "c0ffee has two versions, 1 and 2"],
    ),
}


@pytest.mark.parametrize(("rows", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradicting_facts_are_named_with_locations(rows: str, words: list[str], overlay: Overlay) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(rows)])
    assert [word for word in words if word not in failure.value.message] == []


def test_open_window_ends_at_the_next_one(overlay: Overlay) -> None:
    rows = WINDOW.format("from = 2031-01-01", "6.3") + WINDOW.format("from = 2031-05-01", "6.4")
    catalog = load([overlay(rows)])
    for day, driver in (("2031-04-30", "6.3"), ("2031-05-01", "6.4"), ("2033-01-01", "6.4")):
        answer = resolve(catalog, ask(catalog, "torch", site="archer2", day=day))
        assert isinstance(answer, Resolution)
        pick = answer.pick("kernel-driver")
        assert pick is not None
        assert pick.version == driver


# Requirements widen each other in a layer, and a later layer replaces them.


def _on_rocm(catalog: Catalog) -> list[tuple[str, ...]]:
    return [
        row.versions
        for row in catalog.requires
        if (row.package, row.releases, row.on, row.kind) == ("apex", "", "rocm", "run")
    ]


@pytest.mark.slow
def test_requirements_widen_in_a_layer_and_replace_across(tmp_path: Path) -> None:
    lower = write(tmp_path / "a.toml", APEX_ON_ROCM.format("==6.1.*") + APEX_ON_ROCM.format("==6.2.*"))
    upper = write(tmp_path / "b.toml", APEX_ON_ROCM.format("==6.4.*"))
    before = _on_rocm(load())
    assert _on_rocm(load([lower])) == [("==6.1.*",), ("==6.2.*",)]
    assert _on_rocm(load([lower, upper])) == [("==6.4.*",)]
    assert _on_rocm(load()) == before


def test_duplicate_requirement_is_rejected(overlay: Overlay) -> None:
    with pytest.raises(
        CatalogError, match=r"overlay.toml:8: .*apex.*duplicate of the row at .*overlay.toml:2"
    ):
        load([overlay(APEX_ON_ROCM.format("==6.1.*") * 2)])


# Files that include others.


def test_file_overrides_the_files_it_includes(tmp_path: Path) -> None:
    write(
        tmp_path / "common" / "base.toml", DRIVER.format("6.1") + DRIVER.replace("6.3", "6.4").format("6.2")
    )
    site = write(tmp_path / "site.toml", DRIVER.format("6.2"), 'include = ["common/base.toml"]')
    catalog = load([site])
    assert catalog.driver["6.3"].supports == ("6.2",)
    assert catalog.driver["6.4"].supports == ("6.2",)
    assert catalog.driver["6.4"].from_file == str(tmp_path / "common" / "base.toml")


def test_file_included_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", DRIVER.format("6.1"))
    first = write(tmp_path / "x" / "first.toml", "", 'include = ["../base.toml"]')
    second = write(tmp_path / "x" / "second.toml", "", 'include = ["../base.toml"]')
    assert load([first, second]).driver["6.3"].supports == ("6.1",)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.usefixtures("_no_hang")
def test_include_cycle_is_reported(tmp_path: Path, length: int) -> None:
    files = [tmp_path / f"{number}.toml" for number in range(length)]
    for path, following in zip(files, [*files[1:], files[0]], strict=True):
        write(path, "", f'include = ["{following.name}"]')
    with pytest.raises(CatalogError, match="includes itself") as failure:
        load([files[0]])
    assert failure.value.message.count("which includes") == length
    assert [path.name for path in files if path.name not in failure.value.message] == []


def test_missing_included_file_is_named(tmp_path: Path) -> None:
    site = write(tmp_path / "site.toml", "", 'include = ["gone.toml"]')
    with pytest.raises(CatalogError, match=r"gone\.toml"):
        load([site])


def test_changed_included_file_is_read_again(tmp_path: Path) -> None:
    base = write(tmp_path / "base.toml", DRIVER.format("6.1"))
    site = write(tmp_path / "site.toml", "", 'include = ["base.toml"]')
    cache = tmp_path / "cache"
    assert load([site], cache=cache).driver["6.3"].supports == ("6.1",)
    write(base, DRIVER.format("6.2.0"))
    assert load([site], cache=cache).driver["6.3"].supports == ("6.2.0",)


# Files that are not catalogs.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfes\x00c\x00", "UTF-16"),
        (b"\xef\xbb\xbfschema = 1\n", "byte order mark"),
        (b"schema = 1\n\x00\x01", "binary file"),
        (b"schema = 1\n# caf\xe9\n", "mine.toml:2: not UTF-8 text"),
        (b"# " + b"x" * (8 * 2**20), "larger than 8 MiB"),
    ],
    ids=["UTF-16", "a byte order mark", "binary", "Latin-1", "huge"],
)
def test_file_with_wrong_encoding_is_rejected(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(CatalogError) as failure:
        load([path])
    assert message in failure.value.message
    assert str(path) in failure.value.message


@pytest.mark.usefixtures("_no_hang")
def test_device_file_is_rejected_at_once() -> None:
    with pytest.raises(CatalogError, match="not a regular file"):
        load([Path("/dev/zero")])
