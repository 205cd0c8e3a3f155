"""``matrix env --for tykky-wrap``: the script, with STAND-INS for tykky and the runtime.

The stand-ins accept the options of tykky at CSCfi/hpc-container-wrapper@b0956d9. With the real tykky the
script was run by hand (docs/explanation/what-was-run.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.cli import main

TOOL = f"""#!/bin/bash
set -e
printf '%s\\n' "${{0##*/}}" "$@" "bind=${{SINGULARITY_BIND:-}}" > "$CALLS"
while [ $# -gt 1 ]; do if [ "$1" = --prefix ]; then prefix=$2; fi; shift; done
mkdir -p "$prefix/bin" "$prefix/share"
touch "$prefix/share/conf.yaml"
[ -z "${{FAIL:-}}" ] || exit 1
ln -s {sys.executable} "$prefix/bin/python"
"""
RUNTIME = '#!/bin/bash\n[ "$1" = exec ] && echo ${PYTHONS-/opt/conda/envs/conda_container_env/bin}\n'


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Write the script for ``train.sif``, and stand-ins in a directory."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in {"wrap-container": TOOL, "wrap-install": TOOL, "singularity": RUNTIME}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (tmp_path / "train.sif").write_text("a container")
    assert main(["resolve", "torch", "--site", "lumi-g", "--date", "2026-11-20", "-q"]) == 0
    assert main(["env", "--for", "tykky-wrap", "--environment", "train.sif", "-o", ".", "-q"]) == 0
    return folder


def wrap(tools: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ, "PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(tools / "calls"),
        "SINGULARITY_BIND": "/opt/cray", **env,
    }  # fmt: skip
    return subprocess.run(
        ["bash", "wrap.sh", *words], env=variables, capture_output=True, text=True, check=False
    )


def test_container_is_wrapped_with_its_own_python(tools: Path, tmp_path: Path) -> None:
    done = wrap(tools, "out", "--yaml", "x")
    assert done.returncode == 0, done.stderr
    called = (tools / "calls").read_text().splitlines()
    assert called[0] == "wrap-container"
    assert called[1:3] == ["--environ", f"{tmp_path}/environment.sh"]
    assert called[3:5] == ["--wrapper-paths", "/opt/conda/envs/conda_container_env/bin"]
    assert called[-4:] == ["--yaml", "x", f"{tmp_path}/train.sif", "bind="]
    assert (tmp_path / "out" / "bin" / "python").exists()
    assert "export PYTHONNOUSERSITE=1" in Path("environment.sh").read_text()
    assert "NCCL_SOCKET_IFNAME" in Path("environment.sh").read_text()


def test_directory_is_packed_at_its_place(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    assert wrap(tools, "out", MATRIX_ENVIRONMENT="venv").returncode == 0
    called = (tools / "calls").read_text().splitlines()
    assert called[0] == "wrap-install"
    assert called[3:5] == ["--wrapper-paths", "bin"]
    assert called[-3:-1] == ["--mask", f"{tmp_path}/venv"]


def test_failure_keeps_the_old_environment(tools: Path, tmp_path: Path) -> None:
    assert wrap(tools, "out").returncode == 0
    (tmp_path / "out" / "old").touch()
    failed = wrap(tools, "out", FAIL="1")
    assert failed.returncode == 3
    assert "wrap-container failed (see above)" in failed.stderr
    assert (tmp_path / "out" / "old").exists()
    assert wrap(tools, "out").returncode == 0
    assert not (tmp_path / "out" / "old").exists()
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["my out"], {}, "cannot use a path with spaces"),
        (["tools"], {}, "tools is not an environment of tykky"),
        (["out"], {"MATRIX_ENVIRONMENT": "none.sif"}, "there is no none.sif; set MATRIX_ENVIRONMENT=PATH"),
        (["out"], {"MATRIX_ENVIRONMENT": "tools"}, "tools has no bin/python"),
        (["out"], {"PYTHONS": "."}, "train.sif has no python on PATH"),
        (["out"], {"MISSING": "wrap-container"}, "module load LUMI lumi-container-wrapper"),
    ],
)
def test_what_is_missing_is_named(tools: Path, words: list[str], env: dict[str, str], message: str) -> None:
    if missing := env.pop("MISSING", ""):
        (tools / missing).unlink()
    done = wrap(tools, *words, **env)
    assert done.returncode == 3
    assert message in done.stderr
    assert not list(Path().glob("out*"))


def test_shellcheck_finds_nothing(tools: Path) -> None:
    del tools
    program = str(Path(sys.executable).parent / "shellcheck")
    command = [program, "--exclude=SC2016", "--shell=bash", "wrap.sh", "environment.sh"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""
