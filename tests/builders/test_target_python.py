"""The Python to build for: from the image, from the user, from uv, and errors."""

from __future__ import annotations

import json
import platform
import shlex
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.containers.image import LocalImage
from builders.containers.runtime import Bind, HostRuntime, View
from builders.environments import python as module
from builders.environments.python import find_python, python_view
from builders.machine.host import running_python
from resolver.errors import EnvironmentLacksError, UsageError
from tests.support.tasks import PYTHON

Interpreter = Callable[..., Path]


class ImageRuntime(HostRuntime, frozen=True):
    """A fake base image: programs run on the host, but only from bound paths and ``inside``."""

    inside: Path = Path("/nothing")

    def command(self, command: Sequence[str], view: View, scratch: Path) -> tuple[list[str], dict[str, str]]:
        seen = [self.inside, Path("/bin/sh"), *(bind.path for bind in view.binds)]
        if not any(Path(command[0]).is_relative_to(path) for path in seen):
            command = ["/not/in/the/image"]
        return super().command(command, view, scratch)


@pytest.fixture
def runtime(tmp_path: Path) -> ImageRuntime:
    (tmp_path / "image").mkdir()
    return ImageRuntime(
        image=LocalImage("rocm-6.4", tmp_path / "base.sif", "0" * 64), inside=tmp_path / "image"
    )


@pytest.fixture
def interpreter() -> Interpreter:
    """Return a function that writes a fake interpreter, which answers the probe or fails with a message."""

    def make(prefix: Path, version: str = "3.12.3", *, fails: str = "", **reply: Any) -> Path:
        python = prefix / "bin" / f"python{version.rpartition('.')[0]}"
        python.parent.mkdir(parents=True)
        answer = {
            "path": str(python), "prefix": str(prefix), "version": version, "build": f"{version} (main)",
            "abi": "cp312", "glibc": "2.39", "machine": "x86_64", "headers": True, "venv": True,
            "linkers": {}, **reply,
        }  # fmt: skip
        printed = f"echo {shlex.quote('matrix-answer ' + json.dumps(answer))}"
        python.write_text(f"#!/bin/sh\n{f'echo {shlex.quote(fails)} >&2; exit 1' if fails else printed}\n")
        python.chmod(0o755)
        return python

    return make


@pytest.fixture(autouse=True)
def _no_pythons_of_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))


def test_host_python_reports_itself() -> None:
    python = find_python(HostRuntime(), running_python())
    assert python.where == "host"
    assert python.version == ".".join(map(str, sys.version_info[:3]))
    assert python.build == sys.version
    assert python.prefix == Path(sys.base_prefix)
    assert python.path.exists()
    assert not (python.path.parent.parent / "pyvenv.cfg").exists()
    assert python.library == Path("lib", f"python{python.minor}", "site-packages")
    assert python.abi == f"cp{sysconfig.get_config_var('py_version_nodot')}{sys.abiflags}"


def test_virtual_environment_gives_its_base_python() -> None:
    assert sys.prefix != sys.base_prefix, "the tests run in a virtual environment"
    python = find_python(HostRuntime(), running_python(), given=Path(sys.prefix))
    assert python.where == "given"
    assert python.prefix == Path(sys.base_prefix)
    assert python.binds == (Bind(Path(sys.base_prefix).resolve()),)


def test_first_usable_python_of_image_is_used(runtime: ImageRuntime, interpreter: Interpreter) -> None:
    bare = interpreter(runtime.inside / "bare", headers=False)
    whole = interpreter(runtime.inside / "whole")
    python = find_python(runtime, "3.12", image_pythons=[bare, whole])
    assert (python.path, python.where, python.binds) == (whole, "image", ())


def test_error_lists_why_no_python_is_usable(runtime: ImageRuntime, interpreter: Interpreter) -> None:
    old = "libc.so.6: version `GLIBC_2.34' not found"
    missing = "error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file"
    pythons = [
        interpreter(runtime.inside / "a", headers=False, venv=False),
        interpreter(runtime.inside / "b", fails=old),
        interpreter(runtime.inside / "c", fails=missing),
        interpreter(runtime.inside / "d", abi=312),
    ]
    pythons.append(runtime.inside / "e" / "bin" / "python3.12")
    with pytest.raises(EnvironmentLacksError) as caught:
        find_python(runtime, "3.12", image_pythons=pythons)
    reasons = [line.partition(": ")[2] for line in caught.value.message.splitlines()[1:]]
    assert reasons[0] == "it is missing the headers (Python.h) and the venv module with pip (ensurepip)"
    assert reasons[1] == "it needs GLIBC_2.34, but the glibc of the base image is older"
    assert reasons[2] == "it needs libpython3.12.so.1.0, which is missing"
    assert reasons[3] == "it does not report its version"
    assert reasons[4].startswith("it does not run: ")
    assert "rocm-6.4" in caught.value.message
    assert "uv python install 3.12" in caught.value.hint


def test_version_3_1_is_not_3_12(runtime: ImageRuntime, interpreter: Interpreter) -> None:
    python = interpreter(runtime.inside, "3.12.3")
    with pytest.raises(EnvironmentLacksError, match=r"it is Python 3\.12\.3"):
        find_python(runtime, "3.1", image_pythons=[python])


def test_image_is_searched(runtime: ImageRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter on PATH is tried; an integration test covers the other directories."""
    looked = []

    def run(_: object, command: Sequence[str], view: View) -> tuple[bool, list[str]]:
        looked.append((command, view.binds))
        return (True, ["/opt/one/bin/python3.12"]) if command[0] == "/bin/sh" else (False, ["no such file"])

    monkeypatch.setattr(module, "_run", run)
    with pytest.raises(
        EnvironmentLacksError, match=r"/opt/one/bin/python3\.12: it does not run: no such file"
    ):
        find_python(runtime, "3.12")
    assert looked[0][0][-1] == "3.12"


def test_newest_python_of_uv_is_bound(
    runtime: ImageRuntime, interpreter: Interpreter, tmp_path: Path
) -> None:
    machine = platform.machine()
    for patch in ("3.12.9", "3.12.10", "3.13.1"):
        interpreter(tmp_path / "uv" / f"cpython-{patch}-linux-{machine}-gnu", patch)
    interpreter(tmp_path / "uv" / f"cpython-3.12.11+freethreaded-linux-{machine}-gnu", "3.12.11")
    python = find_python(runtime, "3.12")
    prefix = (tmp_path / "uv" / f"cpython-3.12.10-linux-{machine}-gnu").resolve()
    assert (python.version, python.where, python.binds) == ("3.12.10", "uv", (Bind(prefix),))


def test_given_python_is_bound_or_in_image(
    runtime: ImageRuntime, interpreter: Interpreter, tmp_path: Path
) -> None:
    outside = interpreter(tmp_path / "conda")
    (tmp_path / "link").symlink_to(tmp_path / "conda")
    python = find_python(runtime, "3.12", given=tmp_path / "link")
    assert (python.path, python.where, python.binds) == (outside, "given", (Bind(tmp_path / "conda"),))
    assert find_python(runtime, "3.12", given=outside).binds == (Bind(tmp_path / "conda"),)
    inside = interpreter(runtime.inside / "opt" / "python3.12")
    python = find_python(runtime, "3.12", given=runtime.inside / "opt" / "python3.12")
    assert (python.path, python.where, python.binds) == (inside, "image", ())


def test_wrong_given_python_is_bad_input(
    runtime: ImageRuntime, interpreter: Interpreter, tmp_path: Path
) -> None:
    interpreter(tmp_path / "conda", "3.11.4")
    with pytest.raises(UsageError, match=r"has no Python 3\.12"):
        find_python(runtime, "3.12", given=tmp_path / "conda")
    with pytest.raises(UsageError, match="does not exist"):
        find_python(HostRuntime(), "3.12", given=tmp_path / "nowhere")


def test_system_python_is_not_bound_over_image(
    runtime: ImageRuntime, interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter(tmp_path / "usr")
    monkeypatch.setattr(module, "_SYSTEM", {(tmp_path / "usr").resolve()})
    with pytest.raises(EnvironmentLacksError, match=r"cannot replace \S+ in the image"):
        find_python(runtime, "3.12", given=tmp_path / "usr")


def test_key_depends_on_image_and_interpreter(runtime: ImageRuntime, interpreter: Interpreter) -> None:
    first = find_python(runtime, "3.12", image_pythons=[interpreter(runtime.inside / "a")])
    second = find_python(
        runtime, "3.12", image_pythons=[interpreter(runtime.inside / "b", build="3.12.3 (other)")]
    )
    other = ImageRuntime(image=LocalImage("rocm-6.4", Path("x"), "1" * 64), inside=runtime.inside)
    assert len({first.key(runtime), second.key(runtime), first.key(other)}) == 3


def test_python_variables_of_image_are_unset(runtime: ImageRuntime, interpreter: Interpreter) -> None:
    view = python_view(find_python(runtime, "3.12", image_pythons=[interpreter(runtime.inside / "a")]))
    env: Mapping[str, str] = view.env
    assert env["PYTHONPATH"] == env["PYTHONHOME"] == ""
    assert env["PYTHONNOUSERSITE"] == "1"
    assert not view.network


def test_patch_release_of_python_is_the_same_input() -> None:
    newer = replace(PYTHON, version="3.12.7", build="3.12.7 (main, Oct  1 2026) [GCC 14.2.0]")
    assert newer.identity == PYTHON.identity
    assert replace(PYTHON, abi="cp313").identity != PYTHON.identity
    assert replace(PYTHON, linkers={"LDSHARED": "gcc -shared -static-libgcc"}).identity != PYTHON.identity
