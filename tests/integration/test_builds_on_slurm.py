"""``matrix build-wheels --executor slurm`` with a real Slurm, and real sdists that compile nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.slurm import Slurm, one_node
from tests.support.projects import rows_of, write_catalog, write_sdist

pytestmark = pytest.mark.integration

SETUP = """
import sys
from setuptools import setup
{imports}
if "broken" in "{name}":
    sys.exit("this source does not build")
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""
DIAMOND = {"slurmbase": (), "slurmleft": ("slurmbase",), "slurmright": ("slurmbase",)}
PROJECTS = {
    **DIAMOND,
    "slurmtop": ("slurmleft", "slurmright"),
    "slurmbroken": (),
    "slurmnever": ("slurmbroken",),
}  # fmt: skip
"""Maps each project to those that its build imports: a diamond, and a project whose requirement fails."""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "slurm").mkdir()
    with one_node(tmp_path / "slurm") as made:
        yield made


def write_projects(work: Path) -> None:
    """Write the sdists into the cache, and the catalog rows for them."""
    rows = []
    for name, requires in PROJECTS.items():
        imports = "\n".join(f"import {required}" for required in requires)
        files = {"setup.py": SETUP.format(name=name, imports=imports), f"{name}.py": ""}
        digest = write_sdist(work / "cache" / "matrix", name, files)
        rows.append(rows_of(name, digest, ["setuptools", "wheel", *requires], compiles=False))
    write_catalog(work / "facts" / "projects.toml", rows)


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
    logs = [path.name for path in (tmp_path / "index" / ".matrix" / "logs").glob("slurm-*.log")]
    assert len(logs) == 2  # one for the diamond, one for the chain that fails
    # A killed write leaves a hidden file.
    assert not list((tmp_path / "index" / ".matrix" / "slurm").glob("[!.]*.json"))
