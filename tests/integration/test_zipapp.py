"""The program as one file runs on a machine that has Python and nothing else of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from builders.machine.host import own_program
from tests.rig.rig import index_settings

ROOT = Path(__file__).parents[2]
PREAMBLE = "site-packages/bin/check.py"
MOST = 30 * 2**20  # bytes

MODULES = Path("/usr/lib/x86_64-linux-gnu/modulecmd.tcl")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that `nox -s zipapp` makes of a copy of the sources, in an environment with nox."""
    root = tmp_path_factory.mktemp("zipapp")
    names = (
        "resolver",
        "builders",
        "matrix",
        "pyproject.toml",
        "noxfile.py",
        "hatch_build.py",
        "README.md",
        "LICENSE",
    )
    for name in names:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, root / name)
    shutil.copytree(ROOT / "docs" / "reference", root / "docs" / "reference")  # what ids mean
    subprocess.run([sys.executable, "noxfile.py", "zipapp"], cwd=root, check=True)
    return root / "dist" / "matrix.pyz"


def run(program: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a home, system programs and no other environment."""
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, "-I", str(program), *words],
        cwd=home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_runs_and_starts_its_own_processes(program: Path, tmp_path: Path) -> None:
    assert program.stat().st_size <= MOST
    shown = run(program, "--version", home=tmp_path)
    assert (shown.returncode, shown.stdout.split()[0]) == (0, "matrix")
    (tmp_path / "requirements.txt").write_text("torch==2.9.1\n")
    judged = run(program, "check", "requirements.txt", "--site", "lumi-g", "--offline", home=tmp_path)
    assert judged.returncode == 1
    assert "[cuda-torch]" in judged.stdout
    assert "Traceback" not in judged.stderr


@pytest.mark.long
@pytest.mark.skipif(not MODULES.exists(), reason="needs Debian's package environment-modules")
def test_page_about_bare_logins_runs_on_one(program: Path, tmp_path: Path) -> None:
    """The commands of the page run where Python is 3.6, a module has a new one, and home stays empty.

    STAND-INS: a script for Python 3.6, and a module file, for Debian's Environment Modules, for cray-python.
    """
    python = "python{}.{}".format(*sys.version_info)
    for name in ("home", "bin", "cray", "modules", "project", "flash"):
        (tmp_path / name).mkdir()
    hidden = re.compile(r"(python|pip|uv|shiv|nox)[\d.x-]*.*")
    for path in Path("/usr/bin").iterdir():
        if not hidden.fullmatch(path.name):
            (tmp_path / "bin" / path.name).symlink_to(path)
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho 'Python 3.6.15' >&2\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "cray" / python).symlink_to(getattr(sys, "_base_executable", sys.executable))
    (tmp_path / "modules" / "cray-python").write_text(f"#%Module\nprepend-path PATH {tmp_path / 'cray'}\n")
    shutil.copy(program, tmp_path / "project" / "matrix.pyz")
    page = (ROOT / "docs" / "howto" / "bare-login.md").read_text()
    blocks = [block for block in re.findall(r"(?ms)^```\n(.*?)^```$", page) if "noxfile.py" not in block]
    assert len(blocks) == 2
    commands = "\n".join(blocks).replace("python3.11", python)
    for place in ("project", "flash"):
        commands = commands.replace(f"/{place}/PROJECT", str(tmp_path / place))
    commands = commands.replace("PATH-OF-THE-CLONE", str(program.parents[1]))
    head = f'set -e\nmodule() {{ eval "$({MODULES} bash "$@")"; }}\nmodule use {tmp_path}/modules\n'
    tail = f"{tmp_path}/project/matrix/bin/matrix --version\n"
    done = subprocess.run(
        ["bash", "-c", head + commands + tail],
        cwd=tmp_path / "project",
        env={
            **index_settings(),
            "HOME": str(tmp_path / "home"),
            "USER": "me",
            "PATH": str(tmp_path / "bin"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"for {tmp_path / 'flash' / 'me' / 'cache' / 'matrix'}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("matrix ")
    assert [path.name for path in (tmp_path / "home").iterdir()] == []


def test_another_python_is_refused(program: Path, tmp_path: Path) -> None:
    """No second Python is needed: a copy of the file says that it is for one that does not exist."""
    other = tmp_path / "other.pyz"
    wanted = f"{sys.version_info[0]}, {sys.version_info[1]}".encode()
    with ZipFile(program) as archive, ZipFile(other, "w") as copy:
        for entry in archive.infolist():
            content = archive.read(entry)
            copy.writestr(
                entry, content.replace(wanted, b"3, 999") if entry.filename == PREAMBLE else content
            )
    refused = run(other, "--version", home=tmp_path)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "error: This matrix.pyz is for Python" in refused.stderr


def test_jobs_start_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "matrix.pyz"), "check"])
    assert own_program() == [sys.executable, str(tmp_path / "matrix.pyz")]
