"""Facts measured from wheels count only if the request names their file, and the lock records each file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.storage.files import sha256_of
from matrix.cli import main
from matrix.input.settings import Settings, load_catalog
from resolver.facts.catalog import load
from resolver.lock import read_lock
from tests.builders.bundles import code_object
from tests.support.range_server import serving

MakeWheel = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
TAGS = "py3-none-manylinux_2_17_x86_64"
FACTS = """schema = 1
[[package]]
name = "tiny"
title = "{title}"
status = "documented"
source = "s"
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MATRIX_SITE", raising=False)


def put_on_index(root: Path, *wheels: Path) -> None:
    page = root / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        "".join(f'<a href="/{w.relative_to(root)}#sha256={sha256_of(w)}">{w.name}</a>' for w in wheels)
    )


def test_reading_wheels_changes_no_later_answer(
    make_wheel: MakeWheel, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_wheel(version="1.0", files={"tiny/k.hsaco": code_object("gfx90a")}, tags=TAGS)
    new = make_wheel(version="2.0", files={"tiny/k.hsaco": code_object("gfx942")}, tags=TAGS)
    put_on_index(tmp_path, old, new)

    def chosen(gfx: str, *options: str) -> str:
        assert main(["resolve", "tiny", "--gfx", gfx, "--no-lock", "--format", "json", *options]) == 0
        picks = json.loads(capsys.readouterr().out)["picks"]
        return str(next(pick["version"] for pick in picks if pick["name"] == "tiny"))

    with serving(tmp_path) as server:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        before = chosen("gfx90a")
        for command in (["check"], ["catalog", "learn"], ["catalog", "learn", "--apply"]):
            # The newer wheel is for another GPU than those of the default site.
            assert main([*command, str(old), str(new)]) == int(command == ["check"])
            capsys.readouterr()
            assert chosen("gfx90a") == before, command
        named = ["--catalog", "catalog/learned.toml"]
        assert chosen("gfx90a", *named) == "1.0"
        assert chosen("gfx942", *named) == "2.0"
        # Measured facts do not apply to another file of the same version.
        other = make_wheel(
            version="2.0", files={"tiny/k.hsaco": code_object("gfx90a")}, tags=TAGS, folder="other"
        )
        put_on_index(tmp_path, old, other)
        (tmp_path / "cache" / "matrix" / "indexes").rename(tmp_path / "old-pages")
        assert chosen("gfx90a", *named) == "2.0"


def test_no_file_of_facts_in_the_cache_is_read() -> None:
    shipped = len([*load_catalog(Settings()).rows()])
    for name in ("learned.toml", "catalog/facts.toml"):
        file = Path("cache/matrix") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FACTS.format(title="Tiny"))
    assert len([*load_catalog(Settings()).rows()]) == shipped


def test_wheels_for_several_pythons_are_joined(make_wheel: MakeWheel, capsys: Capture) -> None:
    for python in ("cp312", "cp311", "cp312"):
        make_wheel(tags=f"{python}-{python}-manylinux_2_17_x86_64")
    assert main(["catalog", "learn", "made", "--apply"]) == 0
    catalog = load([Path("catalog/learned.toml")])
    rows = [row.versions for row in catalog.requires if row.package == "tiny" and row.on == "python"]
    assert rows == [("==3.11.*", "==3.12.*")]
    assert len([row for row in catalog.wheel.values() if row.package == "tiny"]) == 2
    capsys.readouterr()


def test_wheel_of_ours_states_the_requirements_of_the_commit_it_was_built_from(
    make_wheel: MakeWheel, capsys: Capture
) -> None:
    catalog = load_catalog(Settings())
    commits = [row for row in catalog.release.values() if row.package == "apex" and row.git]
    alone = next(row for row in commits if sum(row.version == other.version for other in commits) == 1)
    shared = next(row for row in commits if sum(row.version == other.version for other in commits) > 1)
    for release in (alone, shared):
        version = f"{release.version}+rocm6.4.torch2.9.1.gfx90a"
        head = f"Metadata-Version: 2.1\nName: apex\nVersion: {version}\nRequires-Python: >=3.8\n"
        metadata = (
            f"{head}Requires-Dist: packaging>20.6\nRequires-Dist: einops\nRequires-Dist: torch==2.9.1\n\n"
        )
        make_wheel("apex", version, metadata=metadata)
    assert main(["catalog", "learn", "made", "--apply"]) == 0
    measured = Path("catalog/learned.toml").resolve()
    rows = [row for row in load([measured]).requires if row.from_file == str(measured)]
    assert {row.on: row.versions for row in rows if row.applies_to(alone)}.items() >= {
        "packaging": (">20.6",),
        "einops": (">=0",),
    }.items()
    assert "torch" not in {row.on for row in rows if row.applies_to(alone)}
    assert not [row for row in rows if row.applies_to(shared)]
    assert f"commits of {shared.version}" in capsys.readouterr().err


def resolve(*options: str) -> None:
    assert main(["resolve", "numpy", "--backend", "cpu", "--python", "3.12", *options]) == 0


def test_lock_records_every_file_of_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in ("site.toml", "facts/a.toml", "facts/deep/b.toml", "one.toml", "below/included.toml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n{FACTS.format(title='Tiny').replace('tiny', file.stem)}")
    one = Path("one.toml")
    one.write_text(one.read_text().replace("schema = 1", 'schema = 1\ninclude = ["below/included.toml"]'))
    monkeypatch.setenv("MATRIX_SITE", str(tmp_path / "site.toml"))
    resolve("--catalog", "facts", "--catalog", "./one.toml")
    recorded = {file.path: file.sha256 for file in read_lock(Path("matrix.lock")).request.facts_files}
    assert [*recorded] == [
        str(tmp_path / "site.toml"),
        "facts/a.toml",
        "facts/deep/b.toml",
        "below/included.toml",
        "one.toml",
    ]
    assert all(sha256_of(Path(path)) == digest for path, digest in recorded.items())
    capsys.readouterr()


@pytest.mark.parametrize("same_answer", [True, False])
def test_resolve_says_which_files_of_facts_have_changed(capsys: Capture, *, same_answer: bool) -> None:
    facts = Path("facts.toml")
    facts.write_text(FACTS.format(title="Tiny"))
    resolve("--catalog", "facts.toml")
    before = Path("matrix.lock").read_bytes()
    capsys.readouterr()
    resolve("--catalog", "facts.toml")
    assert "changed since" not in capsys.readouterr().err
    assert Path("matrix.lock").read_bytes() == before
    row = "" if same_answer else '[[requires]]\npackage = "numpy"\non = "python"\nversions = ["<3.13"]\n'
    facts.write_text(
        FACTS.format(title="Other") + (f'{row}status = "documented"\nsource = "s"\n' if row else "")
    )
    resolve("--catalog", "facts.toml")
    assert "facts.toml has changed since matrix.lock was written." in capsys.readouterr().err
    (file,) = read_lock(Path("matrix.lock")).request.facts_files
    assert file.sha256 == sha256_of(facts)


def test_resolve_says_which_file_of_facts_is_new_or_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    Path("facts.toml").write_text(FACTS.format(title="Tiny"))
    resolve()
    assert "facts.toml" not in capsys.readouterr().err
    monkeypatch.setenv("MATRIX_SITE", "facts.toml")
    resolve()
    assert "matrix.lock was resolved without the facts in facts.toml." in capsys.readouterr().err
    monkeypatch.delenv("MATRIX_SITE")
    resolve()
    assert "with the facts in facts.toml, which was not read now." in capsys.readouterr().err
