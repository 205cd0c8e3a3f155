"""The compiled form of the catalog has the same rows, and is rewritten when a file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resolver.errors import CatalogError
from resolver.facts import catalog as facts
from resolver.facts.catalog import load

OVERLAY = 'schema = 1\n[[rocm]]\nversion = "6.9.0"\nstatus = "observed"\nsource = "a test"\n'


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    path = tmp_path / "overlay.toml"
    path.write_text(OVERLAY)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.slow
def test_compiled_form_has_the_same_rows(cache: Path, overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = load([overlay])
    assert load([overlay], cache=cache) == fresh
    monkeypatch.setattr("resolver.facts.catalog_files.read_file", None)  # no file may be parsed
    assert load([overlay], cache=cache) == fresh


@pytest.mark.slow
def test_changed_file_is_read_again(cache: Path, overlay: Path) -> None:
    assert "6.9.0" in load([overlay], cache=cache).rocm
    overlay.write_text(OVERLAY.replace("6.9.0", "6.9.1"))
    rocm = load([overlay], cache=cache).rocm
    assert "6.9.1" in rocm
    assert "6.9.0" not in rocm


@pytest.mark.slow
def test_other_files_have_their_own_compiled_form(cache: Path, overlay: Path) -> None:
    assert "6.9.0" in load([overlay], cache=cache).rocm
    assert "6.9.0" not in load(cache=cache).rocm


@pytest.mark.slow
def test_broken_or_missing_file_fails_with_compiled_form(cache: Path, overlay: Path) -> None:
    load([overlay], cache=cache)
    overlay.write_text(OVERLAY.replace("version", "versoin"))
    with pytest.raises(CatalogError, match="versoin"):
        load([overlay], cache=cache)
    overlay.unlink()
    with pytest.raises(CatalogError, match="overlay"):
        load([overlay], cache=cache)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x92\x90\x90", b"no such form"])
def test_damaged_compiled_form_is_ignored(cache: Path, overlay: Path, damage: bytes) -> None:
    fresh = load([overlay], cache=cache)
    (stored,) = cache.iterdir()
    stored.write_bytes(damage)
    assert load([overlay], cache=cache) == fresh


def test_unwritable_cache_is_ignored(tmp_path: Path, overlay: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "6.9.0" in load([overlay], cache=blocked / "cache").rocm


def test_rows_name_their_file(overlay: Path) -> None:
    catalog = load([overlay])
    assert catalog.rocm["6.9.0"].from_file == str(overlay)
    shipped = {str(path) for path in facts.shipped_files()}
    assert {row.from_file for row in catalog.rows()} <= shipped | {str(overlay)}


def test_reserved_key_is_rejected(overlay: Path) -> None:
    overlay.write_text(OVERLAY + 'from-file = "elsewhere"\n')
    with pytest.raises(CatalogError, match="from-file"):
        load([overlay])


@pytest.mark.slow
def test_new_modification_time_rewrites_compiled_form(cache: Path, overlay: Path) -> None:
    load([overlay], cache=cache)
    (stored,) = cache.iterdir()
    before = stored.stat().st_mtime_ns
    os.utime(overlay, ns=(1, 1))
    load([overlay], cache=cache)
    assert stored.stat().st_mtime_ns != before
