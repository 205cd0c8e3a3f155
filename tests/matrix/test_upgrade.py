"""Versions that `matrix resolve` keeps from a lock, and requirements that stay open without an index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from matrix import api
from matrix.cli import main
from matrix.commands import resolve as resolving
from resolver.lock import dumps, read_lock
from tests.support.indexes import FakeIndexes, FakeRelease

Capture = pytest.CaptureFixture[str]
Versions = Callable[..., dict[str, str]]

OLD = {"web": {"1.0": ["core>=1"]}, "core": {"1.0": []}}
NEW = {"web": {"1.0": ["core>=1"], "2.0": ["core>=2"]}, "core": {"1.0": [], "1.5": [], "2.0": []}}


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Versions:
    """Return a function that runs `matrix resolve` with projects, and returns the versions in the lock."""

    def run(projects: dict[str, dict[str, list[str]]], *arguments: str) -> dict[str, str]:
        indexes = FakeIndexes(
            {name: {v: FakeRelease(requires=r) for v, r in of.items()} for name, of in projects.items()}
        )
        monkeypatch.setattr(api, "package_indexes", lambda *_: indexes)
        monkeypatch.setattr(resolving, "package_indexes", lambda *_: indexes)
        assert main(["resolve", *arguments, "--backend", "cpu", "--python", "3.12"]) == 0
        return {pick.name: pick.version for pick in read_lock(Path("matrix.lock")).distributions}

    return run


def test_valid_lock_of_same_request_is_kept(resolve: Versions, capsys: Capture) -> None:
    resolve(OLD, "web")
    before = Path("matrix.lock").read_bytes()
    capsys.readouterr()
    assert resolve(NEW, "web") == {"web": "1.0", "core": "1.0"}
    assert Path("matrix.lock").read_bytes() == before
    assert "matrix.lock is still valid" in capsys.readouterr().err


def test_other_request_is_resolved_anew(resolve: Versions) -> None:
    resolve(OLD, "web")
    assert resolve(NEW, "web", "core") == {"web": "2.0", "core": "2.0"}


def test_upgrade_changes_only_what_it_must(resolve: Versions) -> None:
    resolve(OLD, "web")
    assert resolve(NEW, "web", "--upgrade", "core") == {"web": "1.0", "core": "2.0"}
    resolve(OLD, "web", "-o", "other.lock")
    assert resolve(NEW, "web", "--upgrade", "web") == {"web": "2.0", "core": "2.0"}


def test_lock_that_became_invalid_changes_as_little_as_possible(resolve: Versions) -> None:
    resolve(OLD | {"tool": {"1.0": []}}, "web", "tool")
    without = {"web": {"1.0": ["core>=1"]}, "core": {"1.5": [], "2.0": []}, "tool": {"1.0": [], "2.0": []}}
    assert resolve(without, "web", "tool") == {"web": "1.0", "core": "2.0", "tool": "1.0"}


def test_platform_is_kept_in_upgrade(resolve: Versions) -> None:
    torch = {"lib": {"1.0": ["torch"]}}
    first = resolve(torch, "lib", "torch<2.6")
    again = resolve({"lib": {"1.0": ["torch"], "2.0": ["torch"]}}, "lib", "torch", "--upgrade", "lib")
    assert (first["lib"], again["lib"]) == ("1.0", "2.0")
    assert again["torch"] == first["torch"]


def test_upgrade_without_name_upgrades_everything(resolve: Versions) -> None:
    for options in (["--upgrade"], ["--upgrade", "--upgrade", "core"]):
        assert resolve(OLD, "web", "-o", "matrix.lock", "--upgrade") == {"web": "1.0", "core": "1.0"}
        assert resolve(NEW, "web", *options) == {"web": "2.0", "core": "2.0"}
    Path("matrix.lock").unlink()
    assert resolve(NEW, "web", "--upgrade") == {"web": "2.0", "core": "2.0"}


def changes_of(capsys: Capture) -> list[str]:
    """Return the lines about changes that `matrix resolve` printed."""
    text = capsys.readouterr().err.partition("Changes to matrix.lock:\n")[2]
    return [line.strip() for line in text.split("\n\n")[0].splitlines() if line.startswith("  ")]


def test_changes_to_a_lock_are_printed(resolve: Versions, capsys: Capture) -> None:
    resolve(OLD, "web")
    assert changes_of(capsys) == []
    resolve(NEW, "web")
    assert changes_of(capsys) == []
    resolve(NEW | {"extra": {"1.0": []}}, "extra", "core", "--upgrade")
    changes = changes_of(capsys)
    assert changes == ["core 1.0 -> 2.0", "extra (new) -> 1.0", "web 1.0 -> (removed)"]
    resolve(NEW | {"extra": {"1.0": []}}, "extra", "core<2")
    assert changes_of(capsys) == ["core 2.0 -> 1.5: you asked for core<2"]


def test_changes_are_in_json(resolve: Versions, capsys: Capture) -> None:
    resolve(OLD, "web")
    capsys.readouterr()
    resolve(NEW, "web", "--upgrade", "core", "--format", "json")
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["name"], change["before"], change["after"]) == ("core", "1.0", "2.0")
    resolve(NEW, "web", "--format", "json")
    assert json.loads(capsys.readouterr().out)["changes"] == []


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (FakeRelease(yanked=""), "1.0 was yanked"),
        (FakeRelease(yanked="broken on Linux"), "1.0 was yanked (broken on Linux)"),
        (None, "https://index.example/simple no longer has 1.0"),
    ],
)
def test_yanked_or_removed_version_is_said(
    release: FakeRelease | None, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    releases = {"1.0": FakeRelease()}
    for now in (releases, ({"1.0": release} if release else {}) | {"1.1": FakeRelease()}):
        indexes = FakeIndexes({"core": now})
        monkeypatch.setattr(api, "package_indexes", lambda *_, indexes=indexes: indexes)
        monkeypatch.setattr(resolving, "package_indexes", lambda *_, indexes=indexes: indexes)
        capsys.readouterr()
        assert main(["resolve", "core", "--backend", "cpu", "--python", "3.12"]) == 0
    assert changes_of(capsys) == [f"core 1.0 -> 1.1: {reason}"]


@pytest.mark.parametrize("is_right", [True, False])
def test_hashes_of_a_requirements_file_are_checked(
    resolve: Versions, capsys: Capture, *, is_right: bool
) -> None:
    resolve(OLD, "web")
    before = Path("matrix.lock").read_bytes()
    (file,) = next(pick for pick in read_lock(Path("matrix.lock")).picks if pick.name == "core").files
    digest = file.sha256 if is_right else "0" * 64
    Path("r.txt").write_text(f"web\ncore==1.0 --hash=sha256:{'1' * 64} --hash=sha256:{digest}\n")
    capsys.readouterr()
    code = main(["resolve", "-r", "r.txt", "--backend", "cpu", "--python", "3.12"])
    if is_right:
        assert code == 0
        return
    assert code == 1
    error = capsys.readouterr().err
    assert "r.txt:2: no file of core 1.0 that fits the target has one of the stated hashes" in error
    assert file.sha256 in error
    assert Path("matrix.lock").read_bytes() == before


def test_upgrade_of_missing_name_is_an_error(resolve: Versions, capsys: Capture) -> None:
    resolve(OLD, "web")
    assert main(["resolve", "web", "--backend", "cpu", "--upgrade", "wob"]) == 2
    assert "Did you mean web?" in capsys.readouterr().err


def test_upgrade_without_lock_is_an_error(capsys: Capture) -> None:
    assert main(["resolve", "torch", "--backend", "cpu", "--upgrade", "torch"]) == 2
    assert "There is no lock file matrix.lock." in capsys.readouterr().err


@pytest.mark.parametrize("consumer", ["pip", "uv", "cotainr"])
def test_requirements_left_open_are_written_without_version(
    consumer: str, resolve: Versions, capsys: Capture
) -> None:
    """The user's indexes are written, too, so that pip does not search PyPI only."""
    resolve({"rich": {"13.0": []}, "torch": {"2.9.1": []}}, "torch", "rich>=13")
    lock = read_lock(Path("matrix.lock"))
    picks = tuple(pick for pick in lock.picks if pick.name != "rich")
    own = "https://own.example/simple"
    smaller = replace(lock, picks=picks, left_open=("rich>=13",), indexes=(own,))
    Path("matrix.lock").write_text(dumps(smaller))
    assert main(["env", "--for", consumer, "-o", "out.txt"]) == 0
    assert "rich>=13" in Path("out.txt").read_text()
    assert own in Path("out.txt").read_text()
    if consumer != "uv":
        assert f"pip takes the highest version on PyPI and on {own}" in capsys.readouterr().err


def test_requirement_that_no_release_matches_lists_versions(resolve: Versions, capsys: Capture) -> None:
    resolve(OLD, "web")
    assert main(["resolve", "web==3", "--backend", "cpu"]) == 2
    errors = capsys.readouterr().err
    assert "No release of web matches 'web==3'." in errors
    assert "Known versions: 1.0." in errors
