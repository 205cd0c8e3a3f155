"""``matrix build-wheels --executor slurm`` with a real Slurm, and real sdists that compile nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.slurm import Slurm, one_node

pytestmark = pytest.mark.integration

SETUP = """
import sys
from setuptools import setup
{imports}
if "broken" in "{name}":
    sys.exit("this source does not build")
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""
ROWS = """
[[package]]
name = "{name}"
title = "a project of this test"
import-name = "{name}"
status = "observed"
source = "tests"
[[release]]
package = "{name}"
version = "1.0"
sdist = {{ file = "{name}-1.0.tar.gz", sha256 = "{sha256}" }}
backend = ["cpu"]
status = "observed"
source = "tests"
[[recipe]]
package = "{name}"
backend = "cpu"
undeclared = {undeclared}
match-runtime = []
core-hours = 0.1
status = "observed"
source = "tests"
"""
DIAMOND = {"slurmbase": (), "slurmleft": ("slurmbase",), "slurmright": ("slurmbase",)}
PROJECTS = {
    **DIAMOND,
    "slurmtop": ("slurmleft", "slurmright"),
    "slurmbroken": (),
    "slurmnever": ("slurmbroken",),
}  # fmt: skip
"""Project to those that it imports while it is built: a diamond, and one whose requirement fails."""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "slurm").mkdir()
    with one_node(tmp_path / "slurm") as made:
        yield made


def write_projects(work: Path) -> None:
    """Write the sdists into the cache, and the catalog rows for them."""
    catalog = "schema = 1\n"
    for name, requires in PROJECTS.items():
        imports = "\n".join(f"import {required}" for required in requires)
        files = {"setup.py": SETUP.format(name=name, imports=imports), f"{name}.py": ""}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for member, text in files.items():
                entry = tarfile.TarInfo(f"{name}-1.0/{member}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        sdist = work / "cache" / "matrix" / "sources" / digest[:16] / f"{name}-1.0.tar.gz"
        sdist.parent.mkdir(parents=True)
        sdist.write_bytes(buffer.getvalue())
        undeclared = json.dumps(["setuptools", "wheel", *requires])
        catalog += ROWS.format(name=name, sha256=digest, undeclared=undeclared)
    (work / "facts").mkdir()
    (work / "facts" / "projects.toml").write_text(catalog)


@pytest.mark.timeout(600)
def test_jobs_outlive_killed_command_and_are_attached_to(slurm: Slurm, tmp_path: Path) -> None:
    write_projects(tmp_path)
    environment = {**os.environ, **slurm.env, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = [sys.executable, "-m", "matrix"]

    def matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*program, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    resolved = matrix("resolve", *PROJECTS, "--backend", "cpu", "--catalog", "facts")
    assert resolved.returncode == 0, resolved.stderr
    build = ("build-wheels", "--executor", "slurm")

    log = tmp_path / "killed.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*program, *build, "--jobs", "1", "--time", "30", "--keep-going"],
            cwd=tmp_path,
            env=environment,
            stderr=output,
        )
    until = time.monotonic() + 300
    while ": running" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()

    refused = matrix(*build)
    assert refused.returncode == 2, refused.stderr
    assert "--attach" in refused.stderr

    attached = matrix(*build, "--attach", "--format", "json")
    assert attached.returncode == 1, attached.stderr
    wheels = {wheel["name"]: wheel for wheel in json.loads(attached.stdout)["wheels"]}
    states = {name: wheel["state"] for name, wheel in wheels.items()}
    assert states == {
        **dict.fromkeys((*DIAMOND, "slurmtop"), "built"), "slurmbroken": "failed", "slurmnever": "skipped",
    }  # fmt: skip
    assert all(Path(wheel["wheel"]).is_file() for wheel in wheels.values() if wheel["state"] == "built")
    assert "this source does not build" in attached.stderr
    assert wheels["slurmnever"]["why"] == "it requires slurmbroken, which was not built"
    assert len(list((tmp_path / "index" / ".matrix" / "logs").glob("slurm-*.log"))) == 1
    assert not list((tmp_path / "index" / ".matrix" / "slurm").glob("*.json"))
