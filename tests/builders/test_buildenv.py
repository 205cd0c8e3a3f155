"""The build environment: made once, never half, and pip told where to look."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builders import buildenv
from builders.buildenv import BuildEnvironment, build_environment
from builders.cache import cache_root
from builders.run import CommandError, output_of
from resolver.errors import EnvironmentLacksError

PYTHON = Path(sys.executable)
Make = Callable[..., BuildEnvironment]


class FakeRun:
    """Stands in for venv and pip: notes each command, and makes an interpreter that answers."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []
        self.pip_fails = False

    def __call__(self, command: Sequence[str], *, what: str, log: Path, env: dict[str, str]) -> None:
        assert env["PYTHONNOUSERSITE"] == "1"
        self.commands.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.symlink_to(PYTHON)
        elif self.pip_fails:
            raise CommandError(what, code=1, log=log, lines=["ERROR: No matching distribution"])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setattr(buildenv, "run", fake)
    return fake


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def say(text: str) -> None:
        (tmp_path / "said").write_text(text)

    def call(*requirements: str, indexes: Sequence[str] = ()) -> BuildEnvironment:
        return build_environment(PYTHON, requirements, indexes=indexes, log=tmp_path / "log", say=say)

    return call


def test_it_is_made_once(ran: FakeRun, make: Make) -> None:
    first = make("wheel", "setuptools")
    assert len(ran.commands) == 2
    assert ran.commands[1][-2:] == ["wheel", "setuptools"]
    assert first.root.parent == cache_root() / "environments"
    assert first.python.exists()
    assert make("setuptools", "wheel") == first
    assert len(ran.commands) == 2
    assert make("setuptools", "wheel", "ninja").root != first.root
    assert len(ran.commands) == 4


def test_what_a_crash_left_is_thrown_away(ran: FakeRun, make: Make) -> None:
    one = make("wheel")
    (one.root / "matrix-environment.json").unlink()
    (one.root / "half-installed").touch()
    assert make("wheel") == one
    assert not (one.root / "half-installed").exists()
    assert len(ran.commands) == 4


def test_what_pip_could_not_install_is_not_kept(ran: FakeRun, make: Make) -> None:
    ran.pip_fails = True
    with pytest.raises(EnvironmentLacksError, match="No matching distribution") as caught:
        make("no-such-thing")
    assert caught.value.exit_code == 3
    ran.pip_fails = False
    assert make("no-such-thing").python.exists()


def test_an_environment_that_cannot_be_listed_is_not_kept(
    ran: FakeRun, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list comes out empty when its program is killed or takes too long."""
    monkeypatch.setattr(buildenv, "output_of", lambda command: "" if command[-1] == buildenv._LIST else "3")
    with pytest.raises(EnvironmentLacksError):
        make("wheel")
    monkeypatch.setattr(
        buildenv, "output_of", lambda command: "3" if command[-1] == "-VV" else output_of(command)
    )
    assert make("wheel").installed
    assert len(ran.commands) == 4


def test_only_reachable_indexes_are_offered(ran: FakeRun, make: Make, tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}/"
        make("torch==2.13.0+cpu", indexes=[there])
        server.shutdown()
    command = list(ran.commands[-1])
    assert command[command.index("--extra-index-url") + 1] == there
    make("torch==2.13.1+cpu", indexes=[there])  # the server is gone by now
    assert "--extra-index-url" not in ran.commands[-1]
    assert (tmp_path / "said").read_text().startswith(there)
    ran.pip_fails = True
    with pytest.raises(EnvironmentLacksError) as caught:
        make("torch==2.13.2+cpu", indexes=[there])
    assert f"Make {there} reachable" in caught.value.hint


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.integration
def test_a_real_environment_and_its_list(make: Make) -> None:
    one = make("packaging")
    assert "packaging" in one.installed
    code = "import packaging, sys; print(sys.prefix)"
    said = subprocess.run([str(one.python), "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == f"{one.root}\n"
