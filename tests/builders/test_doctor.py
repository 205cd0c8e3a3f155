"""Checks of a machine; drivers, GPUs, Slurm and disks are stand-ins in directories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from builders.diagnosis import doctor
from builders.diagnosis.doctor import (
    architecture_of,
    check_disk,
    check_driver,
    check_engines,
    check_gpus,
    check_machine,
    check_network,
    check_pythons,
    check_slurm,
    count_gpus,
)
from resolver.facts.catalog import Catalog


class Usage(NamedTuple):
    total: int
    used: int
    free: int


GIB = 2**30


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory on PATH, in which tests put fake programs."""
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


def test_gpus_are_counted_by_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node(tmp_path, 0, "cpu_cores_count 64", "simd_count 0", "gfx_target_version 0")
    for number in (1, 2):
        node(tmp_path, number, "simd_count 440", "gfx_target_version 90010", "a line with more words")
    node(tmp_path, 3, "simd_count 912", "gfx_target_version 90402")
    node(tmp_path, 4)
    monkeypatch.setattr("builders.diagnosis.doctor._TOPOLOGY", tmp_path)
    assert count_gpus() == {"gfx90a": 2, "gfx942": 1}
    assert check_gpus().severity == "info"
    monkeypatch.setattr("builders.diagnosis.doctor._TOPOLOGY", tmp_path / "none")
    assert count_gpus() == {}
    assert check_gpus().severity == "warning"


@pytest.mark.parametrize(
    ("number", "architecture"),
    [
        (90008, "gfx908"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110501, "gfx1151"),
    ],
)
def test_architecture_of_number(number: int, architecture: str) -> None:
    assert architecture_of(number) == architecture


class TestDriver:
    def test_known_driver_lists_supported_rocm(self, catalog: Catalog) -> None:
        finding = check_driver("6.3.6.60003-1739731", catalog)
        assert (finding.severity, finding.evidence["line"]) == ("info", "6.0")
        assert "6.0" in finding.evidence["supports"]
        assert "which supports ROCm" in finding.message

    def test_missing_driver_is_a_warning(self, catalog: Catalog) -> None:
        finding = check_driver("", catalog)
        assert finding.severity == "warning"
        assert "--driver" in finding.fix

    def test_unknown_driver_is_a_warning(self, catalog: Catalog) -> None:
        finding = check_driver("99.99.99", catalog)
        assert (finding.severity, finding.evidence) == ("warning", {"reported": "99.99.99"})


class TestRuntimes:
    def test_missing_engines_are_a_warning(self, programs: Path) -> None:
        finding = check_engines()
        assert (finding.severity, finding.evidence) == ("warning", {})
        assert "module avail" in finding.fix
        assert not list(programs.iterdir())

    def test_engine_has_version(self, programs: Path) -> None:
        put(programs, "singularity", "echo 'singularity-ce version 4.1.3-150500.10.7'")
        assert check_engines().evidence == {"singularity": "4.1.3-150500.10.7"}


class TestSlurm:
    @pytest.mark.usefixtures("programs")
    def test_missing_slurm_is_a_warning(self) -> None:
        assert check_slurm().severity == "warning"

    def test_sbatch_that_fails_is_a_warning(self, programs: Path) -> None:
        put(programs, "sbatch", "exit 1")
        assert check_slurm().message.startswith("`sbatch --version` fails.")

    def test_slurm_lists_partitions(self, programs: Path) -> None:
        put(programs, "sbatch", "echo slurm 23.02.6")
        put(programs, "sinfo", "printf 'standard-g\\nsmall-g\\n'")
        finding = check_slurm()
        assert (finding.severity, finding.evidence) == (
            "info",
            {"version": "23.02.6", "partitions": ["standard-g", "small-g"]},
        )

    def test_silent_controller_is_a_warning(self, programs: Path) -> None:
        put(programs, "sbatch", "echo slurm 23.02.6")
        put(programs, "sinfo", "exit 1")
        finding = check_slurm()
        assert finding.severity == "warning"
        assert "does not respond" in finding.message


class TestDisk:
    @pytest.mark.parametrize(("free", "severity"), [(5, "warning"), (500, "info")])
    def test_little_space_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, severity: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free * GIB))
        finding = check_disk("disk-cache", tmp_path / "not" / "yet")
        assert (finding.severity, finding.evidence["free-gib"]) == (severity, free)
        assert ("XDG_CACHE_HOME" in finding.fix) == (severity == "warning")

    @pytest.mark.parametrize(("cluster", "severity"), [("lumi", "warning"), ("", "info")])
    def test_home_of_a_cluster_has_a_small_quota(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, severity: str
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 500 * GIB))
        monkeypatch.setattr("builders.machine.cluster.cluster_name", lambda: cluster)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        finding = check_disk("disk-cache", tmp_path / "home" / ".cache" / "matrix")
        assert finding.severity == severity
        assert ("small quota" in finding.message) == ("XDG_CACHE_HOME" in finding.fix) == bool(cluster)
        assert check_disk("disk-index", tmp_path / "scratch" / "index").severity == "info"

    def test_unwritable_directory_is_a_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)
        finding = check_disk("disk-index", tmp_path)
        assert finding.severity == "warning"
        assert "--index" in finding.fix


def test_python_shim_that_fails_is_ignored(programs: Path, catalog: Catalog) -> None:
    put(programs, "python3.12", "exit 127")
    assert check_pythons(catalog).severity == "warning"
    put(programs, "python3.11", "echo True True")
    finding = check_pythons(catalog)
    assert (finding.severity, finding.evidence) == ("info", {"3.11": str(programs / "python3.11")})


def test_network_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_reachable", lambda url: "yes" in url)
    assert check_network("sdists", "https://yes.example/").severity == "info"
    finding = check_network("sdists", "https://no.example/")
    assert (finding.severity, finding.evidence) == ("warning", {"url": "https://no.example/"})
    assert "matrix farm fetch" in finding.fix


def test_empty_machine_has_a_consequence_for_each_warning(
    programs: Path, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "is_reachable", lambda _: False)
    monkeypatch.setattr(doctor, "without_network", tuple)
    monkeypatch.setattr(doctor, "can_mount", bool)
    findings = list(check_machine(catalog, tmp_path / "index", {"sdists": "https://no.example/"}))
    missing = {finding.id for finding in findings if finding.severity == "warning"}
    assert missing >= {
        "container-runtimes",
        "user-namespaces",
        "slurm",
        "pythons",
        "compiler",
        "network-sdists",
    }
    assert all(". " in finding.message for finding in findings if finding.severity == "warning")
    assert len({finding.id for finding in findings}) == len(findings)
    assert not list(programs.iterdir())
