"""Patches of a release: read next to the catalog file, checked, applied completely or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

import pytest

from builders.recipes import patches_of
from builders.sources.source import obtain
from builders.storage.files import cache_root
from resolver.errors import CatalogError, EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Sdist
from resolver.model import Distribution
from tests.builders.gitrepos import commit
from tests.support.errors import has_id
from tests.support.locks import built_pick

FIX = """\
--- a/setup.py
+++ b/setup.py
@@ -1,2 +1,2 @@
 first
-second
+second, patched
--- /dev/null
+++ b/new.h
@@ -0,0 +1 @@
+int fresh;
"""
TWICE = (
    FIX.replace("second, patched", "third").replace("-second", "-second, patched").partition("--- /dev")[0]
)
ELSEWHERE = FIX.replace("second", "something else")
OUTSIDE = FIX.replace("b/new.h", "b/../../escaped")
BROKEN = FIX.partition("+second")[0]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def overlay(directory: Path, *patches: str) -> Catalog:
    """Add a release of ``tiny`` with patches to the shipped facts."""
    directory.mkdir(exist_ok=True)
    listed = []
    for number, text in enumerate(patches):
        (directory / f"{number}.patch").write_text(text)
        listed.append(f'{{ file = "{number}.patch", sha256 = "{sha256(text)}" }}')
    (directory / "tiny.toml").write_text(
        'schema = 1\n[[package]]\nname = "tiny"\ntitle = "Tiny"\nstatus = "observed"\nsource = "tests"\n'
        '[[release]]\nversion = "1.0"\nbackend = ["cpu"]\nstatus = "observed"\nsource = "tests"\n'
        f'sdist = {{ file = "tiny-1.0.tar.gz", sha256 = "{"0" * 64}" }}\npatches = [{", ".join(listed)}]\n'
    )
    return load([directory])


def locked(catalog: Catalog) -> Distribution:
    """Lock the release of ``tiny``, with a real sdist in the cache."""
    archive = cache_root() / "tiny-1.0.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    source = archive.parent / "tiny-1.0"
    source.mkdir(exist_ok=True)
    (source / "setup.py").write_text("first\nsecond\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "tiny-1.0")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    runtime = cache_root() / "sources" / digest[:16] / archive.name
    runtime.parent.mkdir(parents=True)
    shutil.move(archive, runtime)
    return built_pick(
        "tiny",
        sdist=Sdist(runtime.name, digest),
        patches=catalog.release["tiny", "1.0", ""].patches,
    )


def test_patches_apply_in_order_and_are_part_of_identity(tmp_path: Path) -> None:
    catalog = overlay(tmp_path / "facts", FIX, TWICE)
    pick = locked(catalog)
    paths = patches_of(pick, catalog)
    assert [path.name for path in paths] == ["0.patch", "1.patch"]
    source = obtain(pick, offline=True, patches=paths)
    assert pick.sdist is not None
    assert source.identity == f"sha256:{pick.sdist.sha256}:{sha256(FIX)}:{sha256(TWICE)}"
    assert source.inputs["patches"] == [sha256(FIX), sha256(TWICE)]
    top = source.unpack(tmp_path / "out")
    assert (top / "setup.py").read_text() == "first\nthird\n"
    assert (top / "new.h").read_text() == "int fresh;\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tiny-1.0"}


@pytest.mark.slow
def test_repository_around_source_is_ignored(tmp_path: Path) -> None:
    """Inside a repository, ``git apply`` skips files that are not in it, and succeeds."""
    commit(tmp_path, {"README": "a user's own repository"})
    catalog = overlay(tmp_path / "facts", f"diff --git a/setup.py b/setup.py\n{FIX.partition('--- /dev')[0]}")
    pick = locked(catalog)
    top = obtain(pick, offline=True, patches=patches_of(pick, catalog)).unpack(tmp_path / "build" / "out")
    assert (top / "setup.py").read_text() == "first\nsecond, patched\n"


@pytest.mark.parametrize("text", [ELSEWHERE, OUTSIDE, BROKEN, "no patch at all\n"])
def test_patch_that_does_not_apply_changes_nothing(tmp_path: Path, text: str) -> None:
    catalog = overlay(tmp_path / "facts", text)
    pick = locked(catalog)
    source = obtain(pick, offline=True, patches=patches_of(pick, catalog))
    with pytest.raises(SourceError, match=r"0\.patch does not apply to tiny-1\.0") as caught:
        source.unpack(tmp_path / "out")
    assert str(tmp_path / "out-source.log") in caught.value.message
    assert (tmp_path / "out" / "tiny-1.0" / "setup.py").read_text() == "first\nsecond\n"
    assert not list(tmp_path.rglob("escaped"))
    assert not list(tmp_path.rglob("new.h"))


@pytest.mark.slow
def test_changed_or_removed_patch_is_an_error(tmp_path: Path) -> None:
    catalog = overlay(tmp_path / "facts", FIX)
    pick = locked(catalog)
    (tmp_path / "facts" / "0.patch").write_text(FIX.replace("patched", "evil"))
    with pytest.raises(MatrixError, match=r"0\.patch", check=has_id("hash-mismatch")) as caught:
        patches_of(pick, catalog)
    assert sha256(FIX) in caught.value.message
    (tmp_path / "facts" / "0.patch").unlink()
    with pytest.raises(SourceError, match="does not exist"):
        patches_of(pick, catalog)
    with pytest.raises(SourceError, match="does not exist"):
        patches_of(pick, load([]))


def test_lock_with_patches_requires_them(tmp_path: Path) -> None:
    pick = locked(overlay(tmp_path / "facts", FIX))
    with pytest.raises(SourceError, match=r"The number of patches for \S+ \S+ must be 1, not 0\."):
        obtain(pick, offline=True)


def test_missing_git_error_names_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = overlay(tmp_path / "facts", FIX)
    pick = locked(catalog)
    source = obtain(pick, offline=True, patches=patches_of(pick, catalog))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentLacksError, match="git is not installed"):
        source.unpack(tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"0.patch"', '"../0.patch"', "without directories"),
        ('"0.patch"', '""', "without directories"),
        (sha256(FIX), "0" * 63, "sha256"),
        (
            'sdist = { file = "tiny-1.0.tar.gz"',
            'wheel = { file = "tiny-1.0-py3-none-any.whl"',
            "only an sdist or a git commit can be patched",
        ),
    ],
)
def test_invalid_patch_row_is_an_error(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    overlay(tmp_path / "facts", FIX)
    file = tmp_path / "facts" / "tiny.toml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(CatalogError, match=complaint) as caught:
        load([tmp_path / "facts"])
    assert "patches" in caught.value.message
