"""The files of ``matrix env``, installed by the real pip and uv, with tiny wheels."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from builders.index import Index
from builders.machine.host import running_python
from matrix.api import write_lock
from matrix.cli import main
from resolver.indexes import File
from resolver.lock import read_lock
from tests.support.locks import local_file, locked_pick, with_index
from tests.support.tiny import tiny_index, tiny_wheel
from tests.support.web_server import web_server

pytestmark = pytest.mark.integration
Capture = pytest.CaptureFixture[str]
LABELLED = "0.19.8+cpu.torch2.13.0"
OLDEST, NEWEST = "22.3", ""


@pytest.fixture(scope="module")
def pips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the oldest supported pip and the newest pip; pip runs from its own wheel."""
    folder = tmp_path_factory.mktemp("pips")
    for version in (OLDEST, NEWEST):
        requirement = f"pip=={version}" if version else "pip"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "-d", str(folder / (version or "newest")), requirement], check=True)
    return folder


def resolve_catalog(*arguments: str) -> None:
    """Resolve without any package index, so that pip and uv choose the versions of all dependencies."""
    without = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in without.items():
            patch.setenv(name, value)
        assert main(["resolve", *arguments, "--backend", "cpu", "-q"]) == 0


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Path:
    """Write a lock for this machine, with its wheel in our index, torch in another, and traps in a third.

    pip is configured to use ``trap``, which has the same names with higher versions.
    """
    monkeypatch.chdir(tmp_path)
    resolve_catalog("deepspeed==0.19.8", "torch==2.13.0")
    torch = tiny_index(
        tmp_path / "torch",
        {"torch": [("2.13.0+cpu", ["sympy"]), ("99.0+cpu", [])], "deepspeed": [("99.0", [])]},
    )
    lock = with_index(read_lock(Path("matrix.lock")), (torch / "simple").as_uri(), "torch")
    write_lock(lock)
    tiny_index(
        tmp_path / "trap",
        {
            "deepspeed": [("0.19.8", []), ("0.19.9", []), ("99.0", [])],
            "torch": [("2.13.0", ["nvidia-cublas-cu12"]), ("99.0", [])],
            "nvidia-cublas-cu12": [("12.8", [])],
            "sympy": [("1.14.0", ["mpmath"])],
            "mpmath": [("1.3.0", [])],
        },
    )
    wheel = tiny_wheel(tmp_path / "made", "deepspeed", LABELLED, requires=["torch", "sympy"])
    Index(tmp_path / "index").publish(wheel, {"build_key": "x"})
    capsys.readouterr()
    return tmp_path


def clean(work: Path) -> dict[str, str]:
    """Return an environment in which pip and uv are configured to use the index with the traps."""
    trap = (work / "trap" / "simple").as_uri()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": trap, "UV_DEFAULT_INDEX": trap}
    return (
        kept | own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    )


def run(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=work, env=clean(work), capture_output=True, text=True, check=False)


def pip(pips: Path, version: str, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (wheel,) = (pips / (version or "newest")).glob("pip-*.whl")
    command = [sys.executable, f"{wheel}/pip", "install", "--no-cache-dir", "--target", "installed"]
    return run([*command, *arguments], work)


def installed(folder: Path) -> dict[str, str]:
    parts = (path.name.removesuffix(".dist-info").rpartition("-") for path in folder.glob("*.dist-info"))
    return {name: version for name, _, version in parts}


def empty(index: Index) -> None:
    """Remove the wheel, as if it had not been built."""
    for path in (index.simple / "deepspeed").glob("*.whl"):
        path.unlink()
    index.refresh("deepspeed")


EXPECTED = {"deepspeed": LABELLED, "torch": "2.13.0+cpu", "sympy": "1.14.0", "mpmath": "1.3.0"}


@contextlib.contextmanager
def reached(work: Path, how: str) -> Iterator[list[str]]:
    """Yield the options that make ``matrix env`` name our index by path or by URL."""
    if how == "file":
        yield []
    else:
        with web_server(work / "index") as url:
            yield ["--index-url", f"{url}/simple/"]


@pytest.mark.parametrize("how", ["file", "http"])
@pytest.mark.parametrize("version", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_pip_installs_exactly_the_pins(work: Path, pips: Path, version: str, how: str) -> None:
    with reached(work, how) as options:
        assert main(["env", "--for", "pip", "-o", "requirements.txt", *options]) == 0
        done = pip(pips, version, work, "-r", "requirements.txt", "-c", "constraints.txt")
    assert done.returncode == 0, done.stderr
    assert installed(work / "installed") == EXPECTED


@pytest.mark.parametrize("version", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_missing_wheel_fails_installation(work: Path, pips: Path, version: str, capsys: Capture) -> None:
    empty(Index(work / "index"))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    assert "is not in" in capsys.readouterr().err
    done = pip(pips, version, work, "-r", "requirements.txt")
    assert done.returncode == 1
    assert f"deepspeed=={LABELLED}" in done.stderr
    assert not (work / "installed").exists()


def test_constraints_limit_later_installs(work: Path, pips: Path) -> None:
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    tiny_index(work / "more", {"later": [("1.0", ["torch"])]})
    more = ["--extra-index-url", (work / "more" / "simple").as_uri()]
    more += ["--extra-index-url", (work / "torch" / "simple").as_uri()]
    done = pip(pips, NEWEST, work, "later", "-c", "constraints.txt", *more)
    assert done.returncode == 0, done.stderr
    assert installed(work / "installed")["torch"] == "2.13.0+cpu"


def complete(work: Path) -> None:
    """Write the lock again with the files of all distributions."""
    lock = read_lock(Path("matrix.lock"))
    indexes = {"torch": work / "torch", "sympy": work / "trap", "mpmath": work / "trap"}
    picks = [pick for pick in lock.picks if pick.name not in indexes]
    for name, root in indexes.items():
        url = (root / "simple").as_uri()
        (wheel,) = (root / "simple" / name).glob(f"{name}-{EXPECTED[name]}-*.whl")
        index = url if name == "torch" else ""
        picks.append(locked_pick(name, EXPECTED[name], local_file(wheel, index=url), index=index))
    write_lock(replace(lock, picks=tuple(picks), left_open=()))


@pytest.mark.parametrize("consumer", ["pip", "cotainr", "tykky"])
def test_hashes_are_complete_and_pip_checks_them(work: Path, pips: Path, consumer: str) -> None:
    complete(work)
    (work / "out").mkdir()
    assert main(["env", "--for", consumer, "-o", "out"]) == 0
    text = (
        work / "out" / {"pip": "requirements.txt", "tykky": "req.txt"}.get(consumer, "env.yml")
    ).read_text()
    lines = [line.strip().removeprefix("- ").strip("'") for line in text.splitlines()]
    pinned = dict(line.split(" --hash=sha256:") for line in lines if "--hash" in line)
    assert set(pinned) == {f"{name}=={version}" for name, version in EXPECTED.items()}
    requirements = work / "section.txt"
    section = [
        line.replace("file:///mnt", f"file://{work}/index")
        for line in lines
        if "==" in line or line[:2] == "--"
    ]
    requirements.write_text("\n".join(section) + "\n")
    for version in (OLDEST, NEWEST):
        limits = ["-c", "out/constraints.txt"] if consumer == "pip" else []
        done = pip(pips, version, work, "--require-hashes", "--no-deps", "-r", "section.txt", *limits)
        assert done.returncode == 0, done.stderr
        assert installed(work / "installed") == EXPECTED
        shutil.rmtree(work / "installed")
    # Another file under the same name is rejected.
    tiny_index(work / "trap", {"mpmath": [("1.3.0", ["sympy>1"])]})
    assert "do not match the hashes" in pip(pips, NEWEST, work, "-I", "-r", "section.txt").stderr.lower()


@pytest.mark.parametrize("installer", [OLDEST, NEWEST, "uv"], ids=["oldest", "newest", "uv"])
def test_hashes_are_checked_beside_a_directory(work: Path, pips: Path, installer: str) -> None:
    """Neither pip nor uv can check the hash of a directory, so the others are URLs that end with one."""
    complete(work)
    tree = work / "tree"
    wheel = tiny_wheel(tree, "tree", "1.2")
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "copies"\nbackend-path = ["."]\n'
    )
    (tree / "copies.py").write_text(
        "import pathlib, shutil\n\ndef build_wheel(folder, *_):\n"
        f"    return pathlib.Path(shutil.copy({wheel.name!r}, folder)).name\n"
    )
    lock = read_lock(Path("matrix.lock"))
    pick = locked_pick("tree", "1.2", File(name="tree-1.2.tar.gz", url=tree.as_uri()))
    write_lock(replace(lock, picks=(*lock.picks, pick)))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    shutil.rmtree(work / "installed", ignore_errors=True)

    def install() -> subprocess.CompletedProcess[str]:
        if installer != "uv":
            return pip(pips, installer, work, "--no-deps", "-r", "requirements.txt")
        command = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]
        return run([*command, "--target", "installed", "--no-deps", "-r", "requirements.txt"], work)

    done = install()
    assert done.returncode == 0, done.stderr
    assert installed(work / "installed") == EXPECTED | {"tree": "1.2"}
    shutil.rmtree(work / "installed")
    tiny_index(work / "trap", {"mpmath": [("1.3.0", ["sympy>1"])]})
    done = install()
    assert done.returncode == 1
    assert "hash" in done.stderr.lower()
    assert "mpmath" in done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_pip_installs_from_wheelhouse_only(
    work: Path, pips: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    complete(work)
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    shutil.rmtree(work / "trap")
    shutil.rmtree(work / "torch")
    assert main(["env", "--for", "pip", "--wheelhouse", "wheels", "-o", "requirements.txt"]) == 0
    done = pip(pips, version, work, "-r", "requirements.txt")  # its resolver finds nothing missing
    assert done.returncode == 0, done.stderr
    assert installed(work / "installed") == EXPECTED


@pytest.mark.parametrize("how", ["file", "http"])
def test_uv_sync_uses_index_of_each_name(work: Path, how: str) -> None:
    (work / "project").mkdir()
    with reached(work, how) as options:
        assert main(["env", "--for", "uv", "-o", "project", *options]) == 0
        command = [uv.find_uv_bin(), "sync", "--no-cache", "--project", "project", "--python", sys.executable]
        done = run(command, work)
    assert done.returncode == 0, done.stderr
    site = work / "project" / ".venv" / "lib" / f"python{running_python()}" / "site-packages"
    assert installed(site) == EXPECTED


def test_uv_locks_our_versions_without_reading_our_wheels(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the requirements of the distributions that we build, so uv reads only the index page."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))
    complete(work)
    (work / "project").mkdir()
    assert main(["env", "--for", "uv", "-o", "project"]) == 0
    (page,) = (work / "index" / "simple" / "deepspeed").glob("index.html")
    files = list(page.parent.glob("deepspeed-*"))
    moved = {path: path.rename(work / path.name) for path in files}
    page.write_text(re.sub(r' data-[a-z-]*metadata="[^"]*"', "", page.read_text()))
    uv_command = [uv.find_uv_bin(), "--no-cache", "--project", "project"]
    done = run([*uv_command, "lock", "--python", sys.executable], work)
    assert done.returncode == 0, done.stderr
    packages = tomllib.loads((work / "project" / "uv.lock").read_text())["package"]
    locked = {package["name"]: package["version"] for package in packages if package["version"] != "0"}
    assert locked == {pick.name: pick.pinned for pick in read_lock(work / "matrix.lock").distributions}
    for path in files:
        moved[path].rename(path)
    line = "import deepspeed, torch; print(deepspeed.__file__)"
    done = run([*uv_command, "run", "--python", sys.executable, "python", "-c", line], work)
    assert done.returncode == 0, done.stderr
    assert str(work / "project" / ".venv") in done.stdout


def test_uv_fails_if_wheel_is_missing(work: Path) -> None:
    empty(Index(work / "index"))
    (work / "project").mkdir()
    assert main(["env", "--for", "uv", "-o", "project"]) == 0
    done = run(
        [uv.find_uv_bin(), "sync", "--no-cache", "--project", "project", "--python", sys.executable], work
    )
    assert done.returncode == 1
    assert "deepspeed" in done.stderr
    assert not list((work / "project").glob(".venv/lib/*/site-packages/deepspeed*"))


def test_uv_pip_installs_requirements(work: Path) -> None:
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    command = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]
    # uv uses the first index that has a name, and ours comes first.
    done = run([*command, "--target", "installed", "-r", "requirements.txt", "-c", "constraints.txt"], work)
    assert done.returncode == 0, done.stderr
    assert installed(work / "installed") == EXPECTED
