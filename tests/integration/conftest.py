"""The real program, run as a user runs it, and the wheel of the real DeepSpeed that it builds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.rig import Rig
from tests.support.built import Built, kill_build, matrix
from tests.support.commands import new_environment, pip_environment
from tests.support.fusedtiny import Repository, make_repository
from tests.support.site import MakeSite, Site, make_site
from tests.support.web_server import web_server


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Resolve and build the real DeepSpeed sdist against the CPU build of torch, once for all tests.

    The first build is killed; the second one finishes.
    """
    work = tmp_path_factory.mktemp("deepspeed")
    options = ("deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu")
    resolved = matrix(work, "resolve", *options)
    assert resolved.returncode == 0, resolved.stderr
    killed = kill_build(work, work / "index")
    done = matrix(work, "build-wheels", "--backend", "cpu")
    assert done.returncode == 0, done.stderr
    (log,) = (work / "index" / ".matrix" / "logs").glob("deepspeed-*.log")
    return Built(work, done.stdout + done.stderr, log, killed)


@pytest.fixture
def file_url(built: Built) -> str:
    """Return the URL of the index as a directory."""
    return (built.index / "simple").as_uri()


@pytest.fixture(params=["file_url", "http_url"])
def index_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of the index, as a directory and on a web server."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def http_url(built: Built) -> Iterator[str]:
    """Serve the index with a plain web server; yield its URL."""
    with web_server(built.index) as url:
        yield f"{url}/simple/"


@pytest.fixture
def fresh_environment(tmp_path: Path) -> Callable[..., Path]:
    """Create a virtual environment, and install into it with pip; return its Python."""

    def make(*arguments: str) -> Path:
        python = new_environment(tmp_path / "fresh")
        command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=pip_environment())
        assert done.returncode == 0, done.stderr
        return python

    return make


@pytest.fixture(scope="session")
def repository(rig: Rig) -> Repository:
    """Return the repository of the small extension, which the user may read."""
    folder = rig.work()
    made = make_repository(folder)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    subprocess.run(["chown", "-R", "--reference", str(folder), str(folder)], check=True)
    return made


@pytest.fixture
def tiny(rig: Rig, repository: Repository) -> MakeSite:
    """Resolve for the small extension with some fault in its build."""

    def make(*, version: str = "1.0", targets: tuple[str, ...] = ("--gfx90a",), **catalog: Any) -> Site:
        return make_site(rig, repository, version=version, targets=targets, **catalog)

    return make
