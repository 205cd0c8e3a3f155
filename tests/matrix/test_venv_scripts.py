"""The scripts of ``matrix env --for venv`` when something is missing or fails.

STAND-INS replace Apptainer and mksquashfs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from matrix.api import write_lock
from matrix.cli import main
from resolver.lock import read_lock
from resolver.model import BaseImage
from tests.support.locks import with_image, with_kept
from tests.support.waiting import wait_for_end, wait_until

APPTAINER = """#!/usr/bin/env bash
# STAND-IN for Apptainer: creates the results of the steps, or fails in the middle.
set -eu
for word; do case "$word" in *:/user-software) venv=${word%:/user-software} ;; esac; done
mkdir -p "$venv/bin"
case "${STEPS:-}" in
    fail) echo "pip: no connection" >&2; exit 1 ;;
    wait) sleep 60 & echo $! > "$venv/waiting"; wait; sleep 1; mkdir -p "$venv" ;;
esac
echo "version = ${STEPS:-1}" > "$venv/pyvenv.cfg"
"""
MKSQUASHFS = """#!/usr/bin/env bash
case "$1" in -help*) exit 1 ;; esac
[ -z "${STEPS:-}" ] || { sleep 60 & echo $! > "$2"; wait; }
[ -z "${FULL:-}" ] || { echo half > "$2"; echo "Write failed because No space left on device" >&2; exit 1; }
cp "$1/pyvenv.cfg" "$2"
"""
RUN = """#!/usr/bin/env bash
for word; do case "$word" in *:/user-software*) echo "$word" ;; esac; done
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the scripts for a lock that builds nothing, so that no index is needed."""
    folder = tmp_path_factory.mktemp("written")
    lock_file = folder / "matrix.lock"
    requested = ["torch==2.13.0", "--gfx90a", "--python", "3.12", "--driver", "30.30", "--site", "local"]
    assert main(["resolve", *requested, "-o", str(lock_file), "-q"]) == 0
    image = folder / "image"
    image.mkdir()
    lock = with_image(read_lock(lock_file), BaseImage(name="image", path=str(image)))
    write_lock(with_kept(lock, "torch"), lock_file)
    assert main(["env", "--for", "venv", "--lock", str(lock_file), "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def work(written: Path, tmp_path: Path) -> Path:
    """Return a directory with the scripts and stand-ins for the tools."""
    for file in written.iterdir():
        if file.suffix in {".sh", ".txt"}:
            shutil.copy(file, tmp_path)
    write_tools(tmp_path, apptainer=APPTAINER, mksquashfs=MKSQUASHFS)
    return tmp_path


def write_tools(work: Path, **tools: str) -> None:
    (work / "bin").mkdir(exist_ok=True)
    for name, text in tools.items():
        (work / "bin" / name).write_text(text)
        (work / "bin" / name).chmod(0o755)


def bash(work: Path, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{work / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", str(work / script), *arguments],
        env={"PATH": path, **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def create(work: Path, **env: str) -> None:
    done = bash(work, "create_venv.sh", **env)
    assert done.returncode == 0, done.stderr


def content(work: Path) -> dict[str, str]:
    """Return the user's environments: their paths, with their versions."""
    texts = {}
    for path in work.glob("matrix-venv*"):
        file = path / "pyvenv.cfg" if path.is_dir() else path
        texts[path.name] = file.read_text().strip() if file.is_file() else ""
    return texts


def test_new_environment_replaces_existing_one(work: Path) -> None:
    create(work)
    create(work, STEPS="2")
    assert content(work) == {"matrix-venv": "version = 2"}


def test_failing_installation_keeps_existing_environment(work: Path) -> None:
    create(work)
    done = bash(work, "create_venv.sh", STEPS="fail")
    assert done.returncode == 3
    assert "pip: no connection" in done.stderr
    assert "create_venv.sh: the environment could not be created (see above)" in done.stderr
    assert content(work) == {"matrix-venv": "version = 1"}


def test_failing_first_installation_leaves_nothing(work: Path) -> None:
    assert bash(work, "create_venv.sh", STEPS="fail").returncode == 3
    assert content(work) == {}


def start_waiting(work: Path, script: str, waiting: str) -> tuple[subprocess.Popen[str], int]:
    """Start a script that does not end; return also the process id of the program that its tool started."""
    started = subprocess.Popen(
        ["bash", str(work / script)],
        env={"PATH": f"{work / 'bin'}:/usr/bin:/bin", "STEPS": "wait", "TMPDIR": str(work)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(path.read_text().endswith("\n") for path in work.glob(waiting)), started)
    (file,) = work.glob(waiting)
    return started, int(file.read_text())


SCRIPTS = [("create_venv.sh", "matrix-venv.new-*/waiting"), ("create_squashfs.sh", "matrix-venv.sqsh.new-*")]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "waiting"), SCRIPTS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupted_script_keeps_what_exists(
    work: Path, number: signal.Signals, script: str, waiting: str
) -> None:
    """The signal reaches only the script, as from a batch system."""
    create(work)
    before = signal.signal(number, signal.SIG_DFL)  # bash traps no signal that it inherits as ignored
    try:
        started, child = start_waiting(work, script, waiting)
    finally:
        signal.signal(number, before)
    started.send_signal(number)
    _, err = started.communicate(timeout=30)
    target = work / waiting.partition(".new-")[0]
    message = f"{script}: interrupted; {target} was not changed"
    assert (started.returncode, message in err) == (130, True)
    wait_for_end(child)
    assert content(work) == {"matrix-venv": "version = 1"}
    create(work, STEPS="2")
    assert content(work) == {"matrix-venv": "version = 2"}


@pytest.mark.parametrize(("script", "waiting"), SCRIPTS)
def test_killed_script_is_reported_and_repeated(work: Path, script: str, waiting: str) -> None:
    create(work)
    started, child = start_waiting(work, script, waiting)
    with started:
        started.kill()
        os.killpg(os.getpgid(child), signal.SIGKILL)
    (left,) = work.glob("matrix-venv*.new-*")
    done = bash(work, script)
    assert done.returncode == 0, done.stderr
    assert f"{left} belongs to a build that still runs or was killed" in done.stderr


def test_other_directory_is_not_replaced(work: Path) -> None:
    (work / "matrix-venv").mkdir()
    done = bash(work, "create_venv.sh")
    assert done.returncode == 3
    assert "matrix-venv exists, but is not an environment; remove it, or set MATRIX_VENV" in done.stderr
    assert content(work) == {"matrix-venv": ""}


@pytest.mark.parametrize("missing", ["requirements.txt", "constraints.txt"])
def test_missing_file_is_named(work: Path, missing: str) -> None:
    (work / missing).unlink()
    done = bash(work, "create_venv.sh")
    assert done.returncode == 3
    assert f"there is no {work}/{missing}; write it with `matrix env --for venv" in done.stderr


def test_missing_runtime_is_named(work: Path) -> None:
    (work / "bin" / "apptainer").unlink()
    for script in ("create_venv.sh", "run.sh"):
        path = work / "only"
        path.mkdir(exist_ok=True)
        for tool in ("bash", "dirname", "cat"):
            (path / tool).unlink(missing_ok=True)
            (path / tool).symlink_to(shutil.which(tool) or tool)
        done = bash(work, script, "python", PATH=str(path))
        assert done.returncode == 3
        assert "neither SingularityCE nor Apptainer is on PATH" in done.stderr


def test_missing_image_is_named(work: Path) -> None:
    create(work)
    for script in ("create_venv.sh", "run.sh"):
        done = bash(work, script, "python", MATRIX_BASE_IMAGE="/nowhere.sif")
        assert done.returncode == 3
        assert "there is no base image /nowhere.sif; set MATRIX_BASE_IMAGE=PATH" in done.stderr
    assert content(work) == {"matrix-venv": "version = 1"}


def test_packed_environment_replaces_directory(work: Path) -> None:
    create(work)
    done = bash(work, "create_squashfs.sh")
    assert done.returncode == 0, done.stderr
    assert content(work) == {"matrix-venv.sqsh": "version = 1"}


def test_failing_mksquashfs_keeps_both(work: Path) -> None:
    create(work)
    assert bash(work, "create_squashfs.sh").returncode == 0
    create(work, STEPS="2")
    done = bash(work, "create_squashfs.sh", FULL="yes")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "create_squashfs.sh: mksquashfs failed (see above)" in done.stderr
    assert content(work) == {"matrix-venv": "version = 2", "matrix-venv.sqsh": "version = 1"}


def test_missing_mksquashfs_is_named(work: Path) -> None:
    create(work)
    (work / "bin" / "mksquashfs").unlink()
    path = work / "only"
    path.mkdir()
    for tool in ("bash", "dirname"):
        (path / tool).symlink_to(shutil.which(tool) or tool)
    done = bash(work, "create_squashfs.sh", PATH=str(path))
    assert done.returncode == 3
    assert "mksquashfs is not on PATH" in done.stderr


def test_packing_without_environment_says_how_to_create_it(work: Path) -> None:
    done = bash(work, "create_squashfs.sh")
    assert done.returncode == 3
    assert "create it with `bash create_venv.sh`" in done.stderr


def test_run_uses_newer_environment(work: Path) -> None:
    write_tools(work, apptainer=RUN)
    missing = bash(work, "run.sh", "python")
    assert missing.returncode == 3
    assert "create it with `bash create_venv.sh`" in missing.stderr
    write_tools(work, apptainer=APPTAINER)
    create(work)
    assert bash(work, "create_squashfs.sh").returncode == 0
    write_tools(work, apptainer=RUN)
    packed = bash(work, "run.sh", "python").stdout
    assert packed == f"{work}/matrix-venv.sqsh:/user-software:image-src=/,ro\n"
    write_tools(work, apptainer=APPTAINER)
    create(work, STEPS="2")
    write_tools(work, apptainer=RUN)
    assert bash(work, "run.sh", "python").stdout == f"{work}/matrix-venv:/user-software\n"


def test_run_requires_command(work: Path) -> None:
    done = bash(work, "run.sh")
    assert done.returncode == 3
    assert "name a command to run" in done.stderr


def test_steps_fail_without_locked_torch(work: Path) -> None:
    """Run the steps for the image on this machine, where no Python has that torch."""
    steps = (work / "create_venv.sh").read_text().partition("<<'INSIDE'\n")[2].partition("\nINSIDE\n")[0]
    done = subprocess.run(["sh"], input=steps, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "The image has no Python 3.12 with torch 2.13.0+rocm" in done.stderr
