"""What is looked at on a machine; drivers, GPUs, Slurm and disks are stand-ins in directories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from builders.doctor import machine
from builders.doctor.gpus import gpus, target_of
from builders.doctor.machine import disk, driver, look, network, pythons, runtimes, slurm
from resolver.facts.catalog import Catalog
from resolver.facts.loading import load


class Usage(NamedTuple):
    total: int
    used: int
    free: int


GIB = 2**30


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH; what a test puts there is all that is installed."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def node(topology: Path, number: int, *lines: str) -> None:
    folder = topology / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text("\n".join(lines))


def test_gpus_are_counted_by_target(tmp_path: Path) -> None:
    node(tmp_path, 0, "cpu_cores_count 64", "simd_count 0", "gfx_target_version 0")
    for number in (1, 2):
        node(tmp_path, number, "simd_count 440", "gfx_target_version 90010", "a line with more words")
    node(tmp_path, 3, "simd_count 912", "gfx_target_version 90402")
    node(tmp_path, 4)
    assert gpus(tmp_path) == {"gfx90a": 2, "gfx942": 1}
    assert gpus(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("number", "target"),
    [
        (90008, "gfx908"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110501, "gfx1151"),
    ],
)
def test_targets(number: int, target: str) -> None:
    assert target_of(number) == target


class TestDriver:
    def test_one_that_is_known_says_what_it_supports(self, catalog: Catalog) -> None:
        point = driver("6.3.6.60003-1739731", catalog)
        assert (point.state, point.data["line"]) == ("ok", "6.0")
        assert "6.0" in point.data["supports"]
        assert "which supports ROCm" in point.found

    def test_none(self, catalog: Catalog) -> None:
        point = driver("", catalog)
        assert point.state == "lack"
        assert "--driver" in point.cure

    def test_one_that_nobody_knows(self, catalog: Catalog) -> None:
        point = driver("99.99.99", catalog)
        assert (point.state, point.data) == ("note", {"said": "99.99.99"})


class TestRuntimes:
    def test_none(self, programs: Path) -> None:
        point = runtimes()
        assert (point.state, point.data) == ("lack", {})
        assert "module avail" in point.cure
        assert not list(programs.iterdir())

    def test_some(self, programs: Path) -> None:
        put(programs, "singularity", "echo 'singularity-ce version 4.1.3-150500.10.7'")
        assert runtimes().data == {"singularity": "4.1.3-150500.10.7"}


class TestSlurm:
    @pytest.mark.usefixtures("programs")
    def test_none(self) -> None:
        assert slurm().state == "lack"

    def test_partitions(self, programs: Path) -> None:
        put(programs, "sbatch", "echo slurm 23.02.6")
        put(programs, "sinfo", "printf 'standard-g\\nsmall-g\\n'")
        point = slurm()
        assert (point.state, point.data) == (
            "ok",
            {"version": "23.02.6", "partitions": ["standard-g", "small-g"]},
        )

    def test_a_controller_that_does_not_answer(self, programs: Path) -> None:
        put(programs, "sbatch", "echo slurm 23.02.6")
        put(programs, "sinfo", "exit 1")
        point = slurm()
        assert point.state == "note"
        assert "does not answer" in point.found


class TestDisk:
    @pytest.mark.parametrize(("free", "state"), [(5, "lack"), (500, "ok")])
    def test_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free * GIB))
        point = disk("disk-cache", tmp_path / "not" / "yet")
        assert (point.state, point.data["free-gib"]) == (state, free)
        assert ("XDG_CACHE_HOME" in point.cure) == (state == "lack")

    def test_a_directory_that_cannot_be_written_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)
        point = disk("disk-index", tmp_path)
        assert point.state == "lack"
        assert "--index" in point.cure


def test_a_shim_that_runs_nothing_is_no_python(programs: Path, catalog: Catalog) -> None:
    put(programs, "python3.12", "exit 127")
    assert pythons(catalog).state == "lack"
    put(programs, "python3.11", "echo True True")
    point = pythons(catalog)
    assert (point.state, point.data) == ("ok", {"3.11": str(programs / "python3.11")})


def test_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_reachable", lambda url: "yes" in url)
    assert network("sdists", "https://yes.example/").state == "ok"
    point = network("sdists", "https://no.example/")
    assert (point.state, point.data) == ("lack", {"url": "https://no.example/"})
    assert "matrix fetch" in point.cure


def test_every_lack_says_what_it_means(
    programs: Path, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has nothing at all."""
    monkeypatch.setattr(machine, "is_reachable", lambda _: False)
    monkeypatch.setattr(machine, "without_network", tuple)
    monkeypatch.setattr(machine, "can_mount", bool)
    points = list(look(catalog, tmp_path / "index", {"sdists": "https://no.example/"}))
    missing_tools = {point.topic for point in points if point.state == "lack"}
    assert missing_tools >= {
        "container-runtimes",
        "user-namespaces",
        "slurm",
        "pythons",
        "compiler",
        "network-sdists",
    }
    assert all(point.means for point in points if point.state == "lack")
    assert len({point.topic for point in points}) == len(points)
    assert not list(programs.iterdir())
