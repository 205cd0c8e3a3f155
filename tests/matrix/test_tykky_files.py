"""``matrix env`` for tykky: the script with a fake conda-containerize, and its failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from builders.index import Index
from builders.machine.host import running_python
from matrix.api import write_lock
from matrix.cli import main
from tests.support.locks import built_pick, lock_of
from tests.support.tiny import tiny_wheel
from tests.support.waiting import wait_for_end, wait_until

FAKE = """#!/bin/bash
printf '%s\\n' "$*" "PYTHONNOUSERSITE=$PYTHONNOUSERSITE" "PYTHONPATH=${PYTHONPATH-}" \\
    "PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL-}" >said.txt
if [ "$1" = new ]; then prefix=$3; else for prefix; do :; done; fi
mkdir -p "$prefix"
if [ -n "${WAIT-}" ]; then
    mkdir -m 500 "$CW_BUILD_TMPDIR/packages"
    sleep 60 & echo $! >waits; wait; sleep 1; mkdir "$prefix"; exit 1
fi
if [ -n "${FAILS-}" ]; then echo "[ ERROR ] Installation failed" && exit 1; fi
mkdir -p "$prefix/bin" "$prefix/share"
echo "$$" >"$prefix/share/conf.yaml"
cat >"$prefix/bin/python" <<'PYTHON'
#!/bin/bash
if [ "$1" = -c ]; then echo "${INSTALLED_PYTHON-@PYTHON@}"; else cat >/dev/null; exit "${DIFFERS-0}"; fi
PYTHON
chmod +x "$prefix/bin/python"
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a directory with the files for a lock, and a fake tykky."""
    version = "1.0+cpu"
    Index(tmp_path / "index").publish(tiny_wheel(tmp_path / "made", "fused", version), {"build_key": "x"})
    lock = lock_of(built_pick("fused", wheel_version=version), requested=("fused==1.0",))
    write_lock(lock)
    assert main(["env", "--for", "tykky", "-o", "."]) == 0
    (tmp_path / "tool").mkdir()
    fake = tmp_path / "tool" / "conda-containerize"
    fake.write_text(FAKE.replace("@PYTHON@", running_python()))
    fake.chmod(0o755)
    return tmp_path


def run(work: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{work / 'tool'}:/usr/bin:/bin"
    command = ["bash", "build.sh", *arguments]
    return subprocess.run(
        command, cwd=work, env={"PATH": path, **env}, capture_output=True, text=True, check=False
    )


def installed(work: Path) -> str:
    return (work / "env" / "share" / "conf.yaml").read_text()


def leftovers(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob("env.*-*"))


def test_script_builds_environment_without_packages_of_user(work: Path) -> None:
    done = run(work, PYTHONPATH="/elsewhere", PIP_USER="1")
    assert done.returncode == 0, done.stderr
    assert f'export PATH="{work}/env/bin:$PATH"' in done.stdout
    output = (work / "said.txt").read_text()
    assert f"--environ {work}/environment.sh -r {work}/req.txt {work}/env.yml" in output
    assert "PYTHONNOUSERSITE=1\nPYTHONPATH=\nPIP_EXTRA_INDEX_URL=\n" in output
    assert "\nexport PYTHONNOUSERSITE=1\n" in (work / "environment.sh").read_text()
    assert leftovers(work) == []


@pytest.mark.parametrize(
    ("required", "container", "works"),
    [("2.99", "", False), ("2.99", "2.100", True), ("2.5", "", True), ("2.39", "2.4", False)],
)
def test_script_checks_glibc_before_it_builds(
    work: Path, required: str, container: str, *, works: bool
) -> None:
    """Versions are compared by number: 2.100 is newer than 2.99."""
    for wheel in (work / "index").rglob("fused-*.whl"):
        tags = f"py3-none-manylinux_{required.replace('.', '_')}_x86_64"
        Index(work / "other").publish(
            wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", tags))), {"build_key": "x"}
        )
    assert main(["env", "--for", "tykky", "-o", ".", "--index", "other"]) == 0
    done = run(work, MATRIX_GLIBC=container)
    assert (done.returncode == 0) is works, done.stderr
    assert (work / "said.txt").exists() is works
    assert works or f"build.sh: the wheels require glibc {required}, and tykky's container has" in done.stderr


def test_existing_environment_is_replaced_after_success(work: Path) -> None:
    assert run(work).returncode == 0
    old = installed(work)
    done = run(work, FAILS="1")
    assert done.returncode == 1
    assert "Installation failed" in done.stdout
    message = f"build.sh: conda-containerize failed (exit code 1, its messages are above); {work}/env was not"
    assert message in done.stderr
    assert "If tykky gives no reason, it could not download Miniforge." in done.stderr
    assert re.search(rf"It needs space: \S+ has \d\S* free, {work} has \d\S*\.\n$", done.stderr)
    done = run(work, DIFFERS="1")
    assert done.returncode == 3
    assert "the new environment differs from the lock and was removed\n" in done.stderr
    assert installed(work) == old
    assert run(work).returncode == 0
    assert installed(work) != old
    assert leftovers(work) == []


def start_waiting(work: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Start a build that does not end; return also the process id of the program that tykky started."""
    (work / "tmp").mkdir()
    env = {"PATH": f"{work / 'tool'}:/usr/bin:/bin", "WAIT": "1", "CW_BUILD_TMPDIR": str(work / "tmp")}
    command = ["bash", "build.sh", *arguments]
    started = subprocess.Popen(
        command, cwd=work, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    file = work / "waits"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), started)
    return started, int(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--update", "env"]], ids=["new", "update"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_nothing(work: Path, number: int, arguments: list[str]) -> None:
    """The signal reaches only the script, as from a batch system."""
    assert run(work).returncode == 0
    old = installed(work)
    before = signal.signal(number, signal.SIG_DFL)  # bash traps no signal that it inherits as ignored
    try:
        started, child = start_waiting(work, *arguments)
    finally:
        signal.signal(number, before)
    started.send_signal(number)
    _, err = started.communicate(timeout=30)
    assert (started.returncode, f"interrupted; {work}/env was not changed" in err) == (130, True)
    wait_for_end(child)
    assert installed(work) == old
    assert leftovers(work) == []
    assert not list((work / "tmp").iterdir())


def test_killed_build_is_reported_and_repeated(work: Path) -> None:
    started, child = start_waiting(work)
    with started:
        started.kill()
        os.killpg(os.getpgid(child), signal.SIGKILL)
    (left,) = leftovers(work)
    done = run(work)
    assert done.returncode == 0, done.stderr
    assert f"{work}/{left} belongs to a build that still runs or was killed" in done.stderr
    assert installed(work)


def test_update_changes_a_copy(work: Path) -> None:
    assert run(work).returncode == 0
    old = installed(work)
    done = run(work, "--update", "env", DIFFERS="1")
    assert done.returncode == 3
    assert "build again, without --update" in done.stderr
    assert installed(work) == old
    assert run(work, "--update", "env").returncode == 0
    assert (work / "said.txt").read_text().startswith(f"update --environ {work}/environment.sh")
    assert installed(work) != old
    assert leftovers(work) == []


def test_update_rejects_another_python(work: Path) -> None:
    assert run(work).returncode == 0
    done = run(work, "--update", "env", INSTALLED_PYTHON="2.7")
    assert done.returncode == 3
    assert f"has Python 2.7, and the lock has {running_python()}; build it again" in done.stderr


def test_moved_index_is_added_to_those_of_pip(work: Path) -> None:
    (work / "index").rename(work / "moved")
    done = run(work)
    assert done.returncode == 3
    assert f"there is no index at {work}/index; set MATRIX_INDEX=DIR if it has moved" in done.stderr
    assert run(work, MATRIX_INDEX="moved").returncode == 0
    assert f"PIP_EXTRA_INDEX_URL= file://{work}/moved/simple\n" in (work / "said.txt").read_text()


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        ("rm tool/conda-containerize", "", "conda-containerize is not on PATH"),
        ("rm req.txt", "", "there is no {work}/req.txt"),
        ("rm index/simple/fused/*.whl", "", "has no fused 1.0+cpu; build it with `matrix build-wheels`"),
        ("mkdir env", "", "{work}/env is not an environment of tykky"),
        ("true", "--update", "{work}/env is not an environment of tykky"),
        ("true", "a,b", "tykky cannot use a path with spaces, : or ,"),
    ],
)
def test_bad_input_stops_before_tykky(work: Path, spoil: str, arguments: str, message: str) -> None:
    subprocess.run(["bash", "-c", spoil], cwd=work, check=True)
    done = run(work, *arguments.split())
    assert done.returncode == 3
    assert done.stderr.startswith("build.sh: ")
    assert message.format(work=work) in done.stderr
    assert not (work / "said.txt").exists()


def test_form_with_pip_needs_the_python_of_the_lock(work: Path) -> None:
    (work / "pip").mkdir()
    assert main(["env", "--for", "tykky-pip", "-o", "pip"]) == 0
    assert {path.name for path in (work / "pip").iterdir()} == {"req.txt", "build.sh", "environment.sh"}
    tool = work / "tool"
    (tool / "conda-containerize").rename(tool / "pip-containerize")
    python = tool / "python3"
    python.write_text("#!/bin/bash\necho 3.6\n")
    python.chmod(0o755)
    done = run(work / "pip", PATH=f"{tool}:/usr/bin:/bin")
    assert done.returncode == 3
    assert f"python3 is Python 3.6, and the lock has {running_python()}; load a module" in done.stderr
    options = ("env", "--uv", "--pyver", running_python())
    assert run(work / "pip", *options, PATH=f"{tool}:/usr/bin:/bin").returncode == 0
    python.write_text(f"#!/bin/bash\necho {running_python()}\n")
    for words in ([], ["--update", "env"]):
        done = run(work / "pip", *words, PATH=f"{tool}:/usr/bin:/bin")
        assert done.returncode == 0, done.stderr
        said = (work / "pip" / "said.txt").read_text().splitlines()[0]
        expected = f"update --environ {work}/pip/environment.sh -r {work}/pip/req.txt" if words else "new"
        assert said.startswith(expected)
        assert words or said.endswith(f"--environ {work}/pip/environment.sh {work}/pip/req.txt")
