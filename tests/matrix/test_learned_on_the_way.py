"""Facts that an audit or a build learns from a wheel are available to later commands."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.files import sha256_of
from builders.learning.stored import remember_built, stored_facts
from matrix.cli import main
from matrix.settings import Settings, load_catalog
from resolver.facts.catalog import applies
from tests.builders.bundles import code_object
from tests.support.range_server import serving

MakeWheel = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
TAGS = "py3-none-manylinux_2_17_x86_64"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def put_on_index(root: Path, *wheels: Path) -> None:
    page = root / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        "".join(f'<a href="/{w.relative_to(root)}#sha256={sha256_of(w)}">{w.name}</a>' for w in wheels)
    )


def test_audited_wheel_is_not_chosen_for_other_gpus(
    make_wheel: MakeWheel, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_wheel(version="1.0", files={"tiny/k.hsaco": code_object("gfx90a")}, tags=TAGS)
    new = make_wheel(version="2.0", files={"tiny/k.hsaco": code_object("gfx942")}, tags=TAGS)
    put_on_index(tmp_path, old, new)

    def chosen(gfx: str) -> str:
        assert main(["resolve", "tiny", "--gfx", gfx, "--no-lock", "--format", "json"]) == 0
        picks = json.loads(capsys.readouterr().out)["picks"]
        return str(next(pick["version"] for pick in picks if pick["name"] == "tiny"))

    with serving(tmp_path) as server:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        assert chosen("gfx90a") == "2.0"
        assert main(["audit", str(old), str(new)]) == 0
        capsys.readouterr()
        assert chosen("gfx90a") == "1.0"
        assert chosen("gfx942") == "2.0"
        # The learned facts do not apply to another file of the same version.
        other = make_wheel(
            version="2.0", files={"tiny/k.hsaco": code_object("gfx90a")}, tags=TAGS, folder="other"
        )
        put_on_index(tmp_path, old, other)
        (tmp_path / "cache" / "matrix" / "indexes").rename(tmp_path / "old-pages")
        assert chosen("gfx90a") == "2.0"


def test_audits_of_wheels_for_several_pythons_are_joined(make_wheel: MakeWheel, capsys: Capture) -> None:
    for python in ("cp312", "cp311", "cp312"):
        wheel = make_wheel(tags=f"{python}-{python}-manylinux_2_17_x86_64")
        assert main(["audit", str(wheel)]) == 0
    catalog = load_catalog(Settings())
    rows = [row.versions for row in catalog.requires if row.package == "tiny" and row.on == "python"]
    assert rows == [("==3.11.*", "==3.12.*")]
    assert len([row for row in catalog.wheel.values() if row.package == "tiny"]) == 2
    capsys.readouterr()


def test_wheel_that_changed_is_learned_again(make_wheel: MakeWheel, capsys: Capture) -> None:
    for stated in (">=3.9", ">=3.10"):
        main(["audit", str(make_wheel(requires_python=stated))])
    rows = [row.versions for row in load_catalog(Settings()).requires if row.package == "tiny"]
    assert rows == [(">=3.10",)]
    capsys.readouterr()


def test_nothing_is_stored_about_other_files_of_a_pinned_release(
    make_wheel: MakeWheel, capsys: Capture
) -> None:
    files = {"bitsandbytes/k.hsaco": code_object("gfx942")}
    for version in ("0.50.2", "0.48.2"):
        main(["audit", str(make_wheel("bitsandbytes", version, files, tags=TAGS))])
    assert not stored_facts().exists()
    capsys.readouterr()


def test_damaged_wheel_is_not_learned(make_wheel: MakeWheel, capsys: Capture) -> None:
    assert main(["audit", str(make_wheel(files={"tiny/op.so": b"no object"}, tags=TAGS))]) == 1
    assert not stored_facts().exists()
    capsys.readouterr()


def test_unusable_stored_facts_are_ignored(capsys: Capture) -> None:
    stored_facts().parent.mkdir(parents=True)
    stored_facts().write_text("schema = 99\n")
    assert main(["catalog", "list"]) == 0
    assert load_catalog(Settings()).torch
    capsys.readouterr()


def test_built_release_gets_the_requirements_of_its_wheel(make_wheel: MakeWheel) -> None:
    catalog = load_catalog(Settings())
    release = next(row for row in catalog.release.values() if row.package == "apex" and row.git)
    head = f"Metadata-Version: 2.1\nName: apex\nVersion: {release.version}+label\nRequires-Python: >=3.8\n"
    metadata = f"{head}Requires-Dist: packaging>20.6\nRequires-Dist: einops\nRequires-Dist: torch==2.9.1\n\n"
    wheel = make_wheel("apex", f"{release.version}+label", metadata=metadata)
    today = datetime.date(2026, 11, 22)
    remember_built(wheel, release.version, release.variant, catalog, today)
    learned = load_catalog(Settings())
    rows = {
        row.on: row.versions
        for row in learned.requires
        if row.from_file == str(stored_facts()) and applies(row, release)
    }
    assert rows.items() >= {"packaging": (">20.6",), "einops": (">=0",)}.items()
    assert "torch" not in rows
