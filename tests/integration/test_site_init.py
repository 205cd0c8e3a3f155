"""``matrix catalog site`` with a real Slurm on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resolver.facts.catalog import load
from tests.rig.slurm import PARTITION, one_node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_site_file_has_slurms_cluster_and_partitions(tmp_path: Path) -> None:
    root = tmp_path / "slurm"
    root.mkdir()
    with one_node(root) as slurm:
        for arguments in (("catalog", "site"), ("catalog", "check", "rig.toml")):
            command = [sys.executable, "-m", "matrix", *arguments]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                check=False,
                env={**os.environ, **slurm.env},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
    catalog = load([tmp_path / "rig.toml"])
    (partition,) = [row for row in catalog.partition.values() if row.site == "rig"]
    assert (partition.name, partition.max_hours) == (PARTITION, 1.0)
