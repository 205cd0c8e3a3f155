"""Wheels of an index that do not fit: what resolve, fetch and verify do with them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from matrix.cli import main
from resolver.lock import read_lock
from tests.builders.bundles import HOST, PREFIX, code_object, padded, plain
from tests.support.commands import bare_environment
from tests.support.elf import shared_object
from tests.support.tiny import wheel_of

Capture = pytest.CaptureFixture[str]
TAG = "py3-none-manylinux_2_28_x86_64"
EXTENSION = "_ops.abi3.so"
CUDA = shared_object(needed=("libcudart.so.12", "libc.so.6"))


class Published:
    """An index in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, name: str, version: str, data: bytes) -> None:
        folder = self.root / name
        wheel_of(folder, name, version, {f"{name}/{EXTENSION}": data}, tag=TAG)
        links = [
            f'<a href="{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
            for path in sorted(folder.glob("*.whl"))
        ]
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.delenv("PIP_NO_INDEX")
    published = Published(tmp_path / "simple")
    published.publish("thing", "1.0", shared_object())
    published.publish("thing", "2.0", CUDA)  # nothing but the object shows it
    return published


RESOLVE = ["resolve", "thing", "--site", "lumi-g", "--date", "2026-11-20", "-q"]


def fetched(capsys: Capture, code: int) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["farm", "fetch", "--format", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def version() -> str:
    return read_lock(Path("matrix.lock")).version_of("thing")


@pytest.mark.usefixtures("index")
def test_fetched_wheel_that_requires_cuda_is_excluded(capsys: Capture) -> None:
    assert main(RESOLVE) == 0
    assert version() == "2.0"
    (item,) = fetched(capsys, 1)["missing"]
    assert (item["name"], item["id"]) == ("thing", "audit")
    assert f"requires CUDA: thing/{EXTENSION} needs libcudart.so.12" in item["message"]
    assert "matrix resolve" in item["hint"]
    assert "thing!=2.0" in item["hint"]
    (excluded,) = read_lock(Path("matrix.lock")).request.excluded
    assert (excluded.name, excluded.version, "CUDA" in excluded.evidence) == ("thing", "2.0", True)
    assert main(RESOLVE) == 0
    assert version() == "1.0"
    assert fetched(capsys, 0)["missing"] == []


@pytest.mark.usefixtures("index")
def test_container_is_not_built_with_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The step before cotainr stops, so the program here only has to exist."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cotainr").write_text("#!/bin/sh\ntouch started\n")
    (programs / "cotainr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert main(["build-container", "out.sif", *RESOLVE[1:], "--executor", "local"]) == 1
    errors = " ".join(capsys.readouterr().err.split())
    assert f"requires CUDA: thing/{EXTENSION} needs libcudart.so.12" in errors
    assert "thing!=2.0" in errors
    assert not Path("out.sif").exists()
    assert not Path("started").exists()


@pytest.mark.usefixtures("index")
def test_the_answer_of_the_cache_is_the_same(capsys: Capture) -> None:
    assert main(RESOLVE) == 0
    first = fetched(capsys, 1)["missing"]
    assert fetched(capsys, 1)["missing"] == first


@pytest.mark.usefixtures("index")
def test_other_backend_is_not_judged(capsys: Capture) -> None:
    assert main(["resolve", "thing", "--backend", "cpu", "-q"]) == 0
    assert fetched(capsys, 0)["missing"] == []


def test_code_for_other_gpus_only_is_reported(index: Published, capsys: Capture) -> None:
    bundle = padded(plain([HOST, (PREFIX + "gfx1030", code_object("gfx1030"))]))
    index.publish("thing", "3.0", shared_object(fatbin=bundle))
    assert main([*RESOLVE, "thing==3.0"]) == 0
    assert "contains code for gfx1030, but not for gfx90a" in fetched(capsys, 1)["missing"][0]["message"]


def test_learned_need_of_cuda_is_enforced(index: Published, capsys: Capture) -> None:
    path = next((index.root / "thing").glob("thing-2.0-*.whl"))
    assert main(["catalog", "learn", str(path), "--apply", "-q"]) == 0
    learned = [*RESOLVE, "--catalog", "catalog/learned.toml"]
    assert main(learned) == 0
    assert version() == "1.0"
    capsys.readouterr()
    assert main([*learned, "thing==2.0"]) == 1
    assert "requires CUDA" in " ".join(capsys.readouterr().out.split()).replace(
        "require CUDA", "requires CUDA"
    )


@pytest.mark.parametrize("command", [["check"], ["catalog", "learn", "--apply"]], ids=" ".join)
def test_facts_that_a_command_learned_count_only_if_their_file_is_named(
    command: list[str], index: Published
) -> None:
    assert main(RESOLVE) == 0
    before = Path("matrix.lock").read_bytes()
    main([*command, str(next((index.root / "thing").glob("thing-2.0-*.whl"))), "-q"])
    Path("matrix.lock").unlink()
    assert main(RESOLVE) == 0
    assert Path("matrix.lock").read_bytes() == before
    assert version() == "2.0"


def installed(tmp_path: Path, *wheels: Path) -> str:
    """Create an environment with the files of wheels, and return its Python."""
    packages = bare_environment(tmp_path / "env")
    for wheel in wheels:
        ZipFile(wheel).extractall(packages)
    return str(tmp_path / "env" / "bin" / "python")


@pytest.mark.slow
def test_verify_without_lock_names_wheels_that_require_cuda(
    index: Published, tmp_path: Path, capsys: Capture
) -> None:
    index.publish("sound", "1.0", shared_object())
    wheels = [next(index.root.rglob(pattern)) for pattern in ("thing-2.0-*.whl", "sound-*.whl")]
    python = installed(tmp_path, *wheels)
    assert main(["check", python, "--run", "--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    (finding,) = [one for one in findings if one["id"] == "verify-does-not-fit"]
    assert finding["message"] == f"thing 2.0 requires CUDA: thing/{EXTENSION} needs libcudart.so.12."
    assert not list((tmp_path / "cache").rglob("thing-*"))


@pytest.mark.slow
def test_verify_excludes_what_does_not_fit_its_lock(
    index: Published, tmp_path: Path, capsys: Capture
) -> None:
    assert main(RESOLVE) == 0
    python = installed(tmp_path, next(index.root.rglob("thing-2.0-*.whl")))
    capsys.readouterr()
    assert main(["check", python, "--run", "--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    assert "verify-does-not-fit" in [one["id"] for one in findings]
    assert [one.version for one in read_lock(Path("matrix.lock")).request.excluded] == ["2.0"]
