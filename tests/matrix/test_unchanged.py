"""``matrix build-wheels`` without changes: a reason for each wheel, after little CPU time."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.index import Index
from matrix.cli import main
from tests.support.projects import rows_of, write_catalog
from tests.support.records import record_of
from tests.support.tiny import tiny_wheel

NAMES = [f"package{number:02}" for number in range(20)]


def cpu_seconds() -> float:
    """Return the CPU time of all programs that were started so far, which other load does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_twenty_unchanged_packages_take_less_than_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in NAMES}
    required = ["setuptools", "wheel", "torch"]
    rows = [rows_of(name, digest, required, match_runtime=["torch"]) for name, digest in digests.items()]
    write_catalog(tmp_path / "mine.toml", rows)
    assert main(["resolve", *NAMES, "--backend", "cpu", "--catalog", "mine.toml", "-q"]) == 0
    capsys.readouterr()
    assert main(["farm", "plan", "--format", "json"]) == 0
    index = Index(tmp_path / "index")
    for task in json.loads(capsys.readouterr().out)["tasks"]:
        record = record_of(task["key"])
        record["predicate"]["buildDefinition"]["internalParameters"]["inputs"] = task["inputs"]
        index.publish(tiny_wheel(tmp_path / "tiny", task["name"], task["version"]), record)
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "matrix", "build-wheels"]
    times, elapsed = [], []
    for _ in range(3):
        before, started = cpu_seconds(), time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        elapsed.append(time.monotonic() - started)
        times.append(cpu_seconds() - before)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert sum(": the index has a wheel built from the same inputs" in line for line in lines) == 20
    sys.stdout.write(f"computing {min(times):.2f} s, elapsed {min(elapsed):.2f} s\n")
    assert min(times) < 0.5, times
