"""Two users of one group work in one index and one cache, whatever their umasks.

The users are real; root creates and removes them. Their directory has the set-group-ID bit, like the
directories of projects on clusters.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builders.index import Index
from builders.index.maintenance import check
from tests.integration.test_builds_on_slurm import DIAMOND, write_projects
from tests.rig.rig import Rig, copy_site, index_settings
from tests.rig.slurm import cluster
from tests.support.fusedtiny import Repository
from tests.support.site import TORCH

MakeWheel = Callable[..., Path]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Builds a directory of the cache and holds a lock, as two concurrent builds do.
USE_CACHE = """
import pathlib, sys
from builders.storage.files import cache_root
from builders.storage.lease import ensure_cached
from builders.storage.files import write_atomic
from builders.storage.lease import exclusive_lock
from builders.storage.lease import TemporaryDirectory
name, new = sys.argv[1:]
for layer in ("both", new):
    root = cache_root() / "layers" / layer
    ensure_cached(root, lambda: (root / "file").write_text(name))
with exclusive_lock(cache_root() / "locks" / "one.lock"):
    write_atomic(cache_root() / "state" / "page", name)
with TemporaryDirectory() as temporary:
    assert temporary.root.is_relative_to(cache_root()), temporary.root
"""

# Begins a build directory, and ends like a failed build.
FAIL_BUILD = """
import pathlib, sys
from builders.storage.files import remove_tree
from builders.index import Index
work = Index(sys.argv[1]).state_directory("builds") / "key"
remove_tree(work)
work.mkdir()
(work / "deep").mkdir()
(work / "deep" / "file").write_text(sys.argv[2])
(work / "deep").chmod(0o500)
"""


class Member:
    """A user of the group."""

    def __init__(self, name: str, root: Path, umask: int) -> None:
        self.name = name
        self.root = root
        self.umask = umask

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python as this user."""
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.root / "home"),
            "PYTHONPATH": str(self.root / "site"),
            "XDG_CACHE_HOME": str(self.root / "project" / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [interpreter(self.root, self.name), *command],
            cwd=self.root / "project",
            env={**variables, **(env or {})},
            user=self.name,
            group=self.name,
            extra_groups=[self.root.name],
            umask=self.umask,
            check=False,
            capture_output=True,
            text=True,
        )

    def matrix(self, *arguments: str) -> str:
        """Run `matrix` as this user, and return its output."""
        done = self.run("-m", "matrix", *arguments)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


def interpreter(root: Path, user: str) -> str:
    """Return a Python of the running version that a user may start."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        try:
            done = subprocess.run([path, "-c", "1"], user=user, group=user, check=False, cwd=root)
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip(f"an ordinary user can start no {name} here")


@pytest.fixture(scope="module")
def group() -> Iterator[Path]:
    """Create a group with two users; return a directory of the same name, in which they find the program."""
    if os.geteuid() != 0:
        pytest.skip("only root can create users")
    if not shutil.which("useradd"):
        pytest.skip("needs useradd")
    name = f"mx{secrets.token_hex(3)}"
    root = Path(tempfile.gettempdir()) / name
    users = [f"{name}a", f"{name}b"]
    try:
        subprocess.run(["groupadd", name], check=True)
        for user in users:
            subprocess.run(["useradd", "--no-create-home", "--user-group", "-G", name, user], check=True)
        root.mkdir(mode=0o755)
        root.chmod(0o755)
        (root / "home").mkdir(mode=0o755)
        copy_site(root / "site")
        yield root
    finally:
        for user in users:
            subprocess.run(["userdel", user], check=False)
        subprocess.run(["groupdel", name], check=False)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def members(group: Path) -> Iterator[tuple[Member, Member]]:
    """Return two users of the group with different umasks; their project directory is empty."""
    project = group / "project"
    project.mkdir()
    shutil.chown(project, "root", group.name)
    project.chmod(0o2770)
    yield Member(f"{group.name}a", group, 0o027), Member(f"{group.name}b", group, 0o007)
    shutil.rmtree(project)


def test_two_users_share_index_and_cache(members: tuple[Member, Member], make_wheel: MakeWheel) -> None:
    """Both users publish, yank, check, repair, remove and prune wheels of each other."""
    first, second = members
    made = {version: make_wheel("tiny", version) for version in ("1.0", "2.0", "3.0")}
    for version, wheel in made.items():
        copied = first.root / "home" / wheel.name
        shutil.copy(wheel, copied)
        made[version] = copied
    first.matrix("index", "add", str(made["1.0"]))
    second.matrix("index", "add", str(made["2.0"]))
    first.matrix("index", "yank", "tiny==2.0")
    second.matrix("index", "yank", "tiny==2.0", "--undo")
    second.matrix("index", "check")
    index = Index(first.root / "project" / "index")
    (index.simple / "tiny" / "index.html").unlink()
    assert "rebuilt" in second.matrix("index", "check", "--repair")
    second.matrix("index", "remove", "tiny==1.0")
    first.matrix("index", "add", str(made["3.0"]))
    first.matrix("index", "prune", "--older-than", "0")
    assert index.projects() == []
    second.matrix("index", "add", str(made["1.0"]))
    assert check(index) == []
    for path in index.root.rglob("*"):
        status = path.stat()
        assert status.st_gid == (first.root / "project").stat().st_gid, path
        assert not status.st_mode & 0o007, path
        assert status.st_mode & 0o060 == 0o060, path


def test_two_users_share_cache(members: tuple[Member, Member]) -> None:
    for number, member in enumerate((*members, *members)):
        done = member.run("-c", USE_CACHE, member.name, str(number))
        assert done.returncode == 0, done.stderr
    cache = members[0].root / "project" / "cache" / "matrix"
    assert (cache / "state" / "page").read_text() == members[1].name
    assert not list((cache / "tmp").iterdir())


def test_failed_build_of_one_does_not_stop_the_other(members: tuple[Member, Member]) -> None:
    for member in (*members, *members):
        done = member.run("-c", FAIL_BUILD, str(member.root / "project" / "index"), member.name)
        assert done.returncode == 0, done.stderr
    builds = members[0].root / "project" / "index" / ".matrix" / "builds"
    assert (builds / "key" / "deep" / "file").read_text() == members[1].name


def test_killed_build_of_layer_does_not_stop_the_other(members: tuple[Member, Member]) -> None:
    first, second = members
    code = """
import os
from builders.storage.files import cache_root
from builders.storage.lease import ensure_cached
root = cache_root() / "layers" / "both"
def build():
    (root / "deep").mkdir()
    (root / "deep").chmod(0o700)
    (root / "deep" / "file").write_text("half")
    os.kill(os.getpid(), 9)
ensure_cached(root, build)
"""
    assert first.run("-c", code).returncode == -9
    done = second.run("-c", USE_CACHE, second.name, "other")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_two_users_build_in_the_image(
    members: tuple[Member, Member], rig: Rig, repository: Repository
) -> None:
    """Each user builds a wheel in the container, with one index and one cache for both."""
    project = members[0].root / "project"
    repository.catalog(project / "facts")
    (project / "matrix.toml").write_text('catalog = ["facts"]\n')
    request = ["fusedtiny==1.0", TORCH, "--site", "local", "--backend", "rocm", "--driver", "30.30"]
    request += ["--base-image", str(rig.image), "--python", "3.11"]
    variables = rig.user_environment() | {"PIP_FIND_LINKS": str(rig.wheels)}
    variables |= {name: str(members[0].root / "home") for name in ("HOME", "TMPDIR")}
    for member, gfx in zip(members, ("gfx90a", "gfx942"), strict=True):
        lock = f"{gfx}.lock"
        for command in (["resolve", *request, "--gfx", gfx, "-o", lock], ["build-wheels", "--lock", lock]):
            done = member.run("-m", "matrix", *command, env=variables)
            assert done.returncode == 0, done.stderr
    index = Index(project / "index")
    assert [wheel.partition("torch2.13.0.")[2][:6] for wheel in index.wheel_names("fusedtiny")] == [
        "gfx90a",
        "gfx942",
    ]
    assert check(index) == []


@pytest.mark.long
def test_two_users_build_in_slurm_jobs(members: tuple[Member, Member]) -> None:
    """Each user has a separate run into the same index; the second user reuses the wheels of the first."""
    root, project = members[0].root, members[0].root / "project"
    write_projects(project)
    for path in project.rglob("*"):
        shutil.chown(path, "root", root.name)
        path.chmod(0o2770 if path.is_dir() else 0o660)
    (root / "slurm").mkdir(mode=0o755)
    settings = index_settings()
    names = (*DIAMOND, "slurmtop")
    with cluster(root / "slurm", nodes=("rig1", "rig2")) as slurm, ThreadPoolExecutor(2) as pool:

        def build(member: Member) -> subprocess.CompletedProcess[str]:
            lock = f"{member.name}.lock"
            request = (*names, "--backend", "cpu", "--catalog", "facts", "-o", lock)
            resolved = member.run("-m", "matrix", "resolve", *request, env=settings)
            assert resolved.returncode == 0, resolved.stderr
            options = (
                "--executor",
                "slurm",
                "--index",
                "index",
                "--jobs",
                "1",
                "--time",
                "30",
                "--format",
                "json",
            )
            return member.run(
                "-m", "matrix", "build-wheels", *options, "--lock", lock, env=settings | slurm.env
            )

        done = list(pool.map(build, members))
    index = Index(project / "index")
    for result in done:
        assert result.returncode == 0, result.stderr
        wheels = json.loads(result.stdout)["wheels"]
        assert {wheel["name"]: wheel["state"] for wheel in wheels}.keys() == set(names)
        assert {wheel["state"] for wheel in wheels} <= {"built", "up to date"}
    assert [len(list((project / "index").rglob(f"{name}-1.0*.whl"))) for name in names] == [1] * len(names)
    assert check(index) == []
    assert not list((index.state / "slurm").glob("*.json"))
