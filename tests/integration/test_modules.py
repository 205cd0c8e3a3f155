"""``matrix env --for module``: the module files in the real Lmod and the real Environment Modules.

The container is the base image of the rig. The site's module is a STAND-IN: it only sets a variable.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from matrix.cli import main
from tests.rig.rig import Rig

MODULES = Path("/usr/lib/x86_64-linux-gnu/modulecmd.tcl")
LMOD = Path("/opt/lmod/usr/share/lmod/lmod/libexec/lmod")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not MODULES.exists(), reason="needs Debian's package environment-modules"),
    pytest.mark.skipif(not LMOD.exists(), reason="run tests/rig/install-lmod.sh as root"),
]
TOOLS = {"lmod": f"lua5.3 {LMOD} bash", "modules": f"{MODULES} bash"}
NAME = 'it\'s a "train" $HOME [x] {'
"""The name of the container."""
FOLDER = "it's a directory"
"""Environment Modules 5.2 finds no module below a directory with brackets or dollars."""
FACTS = """schema = 1
[[job]]
site = "lumi-g"
ranks = 8
cpus = 7
modules = {{ "lumi-*" = ["{modules}", "bindings"] }}
mpi-modules = {{ host-mpi = "eb host-mpi.eb", not-installed = "eb not-installed.eb" }}
status = "observed"
source = "tests"
[[image]]
name = "mine"
rocm = "6.4.4"
python = ["3.12"]
glibc = "2.35"
mpi = "MPICH 4.1.2"
status = "observed"
source = "tests"
[[site-image]]
site = "lumi-g"
image = "mine"
status = "observed"
source = "tests"
[[site-variable]]
site = "lumi-g"
name = "MATRIX_TEST_UNSET"
reason = "a test"
status = "observed"
source = "tests"
[[site-variable]]
site = "lumi-g"
name = "MATRIX_TEST_TEXT"
value = "100% of [this]; yes"
reason = "a test"
status = "observed"
source = "tests"
"""
SCRIPT = r"""
module() {{
    local code status=0
    code=$({tool} "$@" 2>"$HOME/errors") || status=$?
    cat "$HOME/errors"
    eval "$code"
    return $status
}}
state() {{
    echo "$1:"
    env | grep -E '^(NCCL|FI_|MATRIX_TEST|MATRIX_ENV|BINDINGS|HOST_MPI|PATH=)' | sort
    echo "which=$(command -v python)"
}}
export MODULEPATH= NCCL_SOCKET_IFNAME=mine MATRIX_TEST_UNSET=mine PATH=/usr/bin:/bin
module use {folder}
module use {other}
echo avail; module avail
echo help; module help {name}
state before
echo load; module load {name}
state loaded
python -c 'import os, sys; print("ran", os.path.exists("/opt/rocm/bin/hipcc"), sys.argv[1:])' "two words" 'q"'
python -c 'from os import environ as e
print("inside", e.get("NCCL_SOCKET_IFNAME"), "MIOPEN_USER_DB_PATH" in e, e.get("MATRIX_TEST_UNSET"))'
echo second; module load second; echo "loaded=$LOADEDMODULES"
module unload {name}
module unload second
state unloaded
module use {site}
echo mpi; module load second
state mpi
echo after; module unload second
state after
"""


@pytest.fixture(scope="module")
def folder(rig: Rig) -> Path:
    """Write the module of a container in a directory, both with difficult names."""
    base = rig.root / "modules"
    base.mkdir()
    (base / "site").mkdir()
    (base / "site" / "bindings").write_text("#%Module1.0\nsetenv BINDINGS 1\n")
    (base / "site" / "host-mpi").write_text("#%Module1.0\nsetenv HOST_MPI 1\n")
    (base / "facts.toml").write_text(FACTS.format(modules=base / "site"))
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--catalog", str(base / "facts.toml"), "-q"]
    requests = {"train": ["torch", "apex"], "second": ["torch", "mpi4py", "--base-image", "mine"]}
    for name, request in requests.items():
        assert main(["resolve", *request, *options, "-o", str(base / f"{name}.lock")]) == 0
    image = base / f"{NAME}.sif"
    image.symlink_to(rig.image)
    for where, name in ((base / FOLDER, "train"), (base / "other", "second")):
        where.mkdir()
        command = [
            "env",
            "--for",
            "module",
            "--lock",
            str(base / f"{name}.lock"),
            "--environment",
            str(image),
        ]
        assert main([*command, "-o", str(where / f"{name}.lua"), "-q"]) == 0
    return base


def states(output: str) -> dict[str, list[str]]:
    """Return the lines that follow each heading of the script."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.rstrip(":") in {
            "avail",
            "help",
            "before",
            "load",
            "loaded",
            "second",
            "unloaded",
            "mpi",
            "after",
        }:
            lines = found.setdefault(line.rstrip(":"), [])
        else:
            lines.append(line)
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_load_use_and_unload(rig: Rig, folder: Path, tool: str) -> None:
    work = rig.work()
    folders = [folder / FOLDER, folder / "other"]
    script = SCRIPT.format(
        tool=TOOLS[tool],
        folder=shlex.quote(str(folders[0])),
        other=shlex.quote(str(folders[1])),
        site=shlex.quote(str(folder / "site")),
        name="train",
    )
    done = rig.run_as_user(["bash", "-u", "-c", script], cwd=work, env={"HOME": str(work)})
    found = states(done.stdout)
    assert [line for line in done.stderr.splitlines() if not line.startswith("INFO: ")] == []
    assert "train" in "\n".join(found["avail"])
    assert "train.bin" not in "\n".join(found["avail"])
    text = " ".join(found["help"])
    assert "torch==2.9.1+rocm6.4" in text
    assert "lock with SHA-256" in text
    assert str(folder / f"{NAME}.sif") in text
    loaded = found["loaded"]
    assert f"MATRIX_ENVIRONMENT={folder / NAME}.sif" in loaded
    assert f"which={folder / FOLDER / 'train.bin' / 'python'}" in loaded
    assert {"NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", "BINDINGS=1"} <= set(loaded)
    assert "MATRIX_TEST_TEXT=100% of [this]; yes" in loaded
    assert not any(line.startswith("MATRIX_TEST_UNSET") for line in loaded)
    assert "ran True ['two words', 'q\"']" in loaded
    assert "inside hsn0,hsn1,hsn2,hsn3 True None" in loaded
    (both,) = (line[7:].split(":") for line in found["second"] if line.startswith("loaded="))
    assert len({"train", "second"} & set(both)) == 1, both
    before, unloaded = set(found["before"]), set(found["unloaded"])
    if tool != "lmod":  # modulefile(4): unsetenv does not restore
        before.discard("MATRIX_TEST_UNSET=mine")
    assert unloaded == before
    assert "HOST_MPI=1" in found["mpi"]
    assert "BINDINGS=1" not in found["mpi"]
    assert not {line for line in [*found["after"], *loaded] if line.startswith("HOST_MPI")}


EXTENDED = r"""
module() {{
    local code status=0
    code=$({tool} "$@" 2>"$HOME/errors") || status=$?
    cat "$HOME/errors" >&2
    eval "$code"
    return $status
}}
seen() {{ echo "$1 $(python -c 'import sys, theirs, both; print(sys.prefix, theirs.VALUE, both.VALUE)')"; }}
state() {{ env | grep -E '^(PATH|MODULEPATH|VIRTUAL_ENV|MATRIX_|NCCL_)' | sort; }}
export MODULEPATH={other} LOADEDMODULES= PATH={folder}/train.bin:/usr/bin:/bin
extend-venv-activate {venv}
extend-venv-activate {venv}
export PATH=/usr/bin:/bin
state > before
source {venv}/bin/activate
seen once
source {venv}/bin/activate
seen twice
tool
deactivate
state > after
type deactivate 2>/dev/null
diff before after && echo undone
{venv}/bin/python -c 'import theirs' 2>/dev/null || echo alone
"""
PROGRAM = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
print("tool runs")
"""
"""As pip writes it for a path with spaces."""


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", ["directory", "container"])
def test_virtual_environment_is_bound_to_a_module(rig: Rig, folder: Path, tool: str, kind: str) -> None:
    """Its own packages come first; a program of it runs; deactivating it restores the variables."""
    work = rig.work()
    environment, venv, where = work / "its environment", work / "my venv's", work / FOLDER
    image = folder / f"{NAME}.sif"
    make = ["env", "--for", "module", "--lock", str(folder / "train.lock"), "-q", "--environment"]
    where.mkdir()
    host = ["python3.11", "-m", "venv", "--without-pip"]
    inside = ["apptainer", "exec", "-B", str(work), str(image), *host]
    for path, command in ((environment, host), (venv, host if kind == "directory" else inside)):
        done = rig.run_as_user([*command, str(path)], cwd=work)
        assert done.returncode == 0, done.stderr
    site = "lib/python3.11/site-packages"
    modules = {environment / site / "theirs.py": "theirs", environment / site / "both.py": "theirs"}
    for path, value in (modules | {venv / site / "both.py": "mine"}).items():
        path.write_text(f"VALUE = '{value}'\n")
    program = venv / "bin" / "tool"
    program.write_text(PROGRAM.format(python=venv / "bin" / "python"))
    program.chmod(0o755)
    if kind == "container":  # its packages are those of the directory
        packages = f"{work / 'its.pth'}:/opt/python3.11/lib/python3.11/dist-packages/its.pth"
        (work / "its.pth").write_text(f"{environment / site}\n")
        bind = {"APPTAINER_BIND": packages, "SINGULARITY_BIND": packages}
    else:
        image, bind = environment, {}
    assert main([*make, str(image), "-o", str(where / "train.lua")]) == 0
    paths = {"folder": where, "venv": venv, "other": folder / "other"}
    places = {name: shlex.quote(str(path)) for name, path in paths.items()}
    script = EXTENDED.format(tool=TOOLS[tool], **places)
    done = rig.run_as_user(["bash", "-u", "-c", script], cwd=work, env={"HOME": str(work), **bind})
    told, again, *lines = done.stdout.splitlines()
    assert told == again
    assert told.startswith("To load the module: source ")
    expected = [f"once {venv} theirs mine", f"twice {venv} theirs mine", "tool runs", "undone", "alone"]
    assert lines == expected, done.stdout + done.stderr
