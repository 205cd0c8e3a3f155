"""The real cotainr, with the real Apptainer as an ordinary user, builds a container from our index.

Three things are fakes, marked as such: Miniforge's installer (``tests/rig/standin_miniforge.sh``), torch (the
rig's) and triton. The extension holds real code for gfx90a, compiled in the same base image; nothing runs on
a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from wheel.wheelfile import WheelFile

from resolver.lock import dumps, read_lock
from resolver.model import BaseImage
from tests.rig.rig import HERE as RIG
from tests.rig.rig import PROJECT, Rig
from tests.rig.standin_download import VARIABLE
from tests.support.locks import with_image
from tests.support.records import results_of

pytestmark = pytest.mark.integration
COTAINR = "cotainr==2025.7.1"
TORCH = "2.13.0+rocm7.2"
PINNED = "1.0+rocm7.2.torch2.13.0.gfx90a"
FACTS = """
schema = 1
[[package]]
name = "tinyext"
title = "an extension with one kernel"
import-name = "tinyext"
status = "observed"
source = "tests"
[[release]]
package = "tinyext"
version = "1.0"
git = { url = "https://example.org/tinyext.git", commit = "0123456789012345678901234567890123456789" }
backend = ["rocm"]
status = "observed"
source = "tests"
[[recipe]]
package = "tinyext"
backend = "rocm"
undeclared = ["setuptools", "torch"]
imports = ["tinyext"]
must-contain = ["tinyext.abi3.so"]
status = "observed"
source = "tests"
"""
INSTALLER = "standin_miniforge.sh"
SOURCE = """
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <hip/hip_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tinyext", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_tinyext(void) { return PyModule_Create(&module); }
"""
COMPILE = """
cd /work && hipcc -x hip --offload-arch=gfx90a -O1 -shared -fPIC \
    -I"$(python3.11 -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    tinyext.hip -o tinyext.abi3.so
"""
PUBLISH = """
import sys
from pathlib import Path
from builders.index import Index
for wheel in sys.argv[2:]:
    Index(Path(sys.argv[1])).publish(Path(wheel), {})
"""


@dataclass(frozen=True)
class Project:
    """A user's directory with lock, index and environment file, and the user's cotainr."""

    rig: Rig
    work: Path
    cotainr: Path

    def matrix(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work, env=env)

    def build(self, sif: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Build a container by ``matrix run``, with variables set that make a user's build fail."""
        given = {
            VARIABLE: str(self.cotainr.parents[1] / INSTALLER),
            "APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 1",
            "PIP_RETRIES": "0",  # PyTorch's own index cannot be reached here, and is not needed
            "SINGULARITY_BIND": "/var/spool:/nowhere",  # what a site module sets
            "SINGULARITYENV_PYTHONPATH": str(self.rig.root / "site"),
            "TMPDIR": "/opt",
            "PIP_USER": "1",
        }
        command = [str(self.cotainr), "build", sif, "--base-image", str(self.rig.image)]
        command += ["--conda-env", "env.yml", "--accept-licenses", "-v", "--no-color"]
        return self.matrix("run", *more, "--", *command, **given)

    def build_script(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run build.sh with cotainr on PATH."""
        given = {
            "PATH": f"{self.cotainr.parent}:/usr/local/bin:/usr/bin:/bin",
            VARIABLE: str(self.cotainr.parents[1] / INSTALLER),
            "APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 1",
            "PIP_RETRIES": "0",
        }
        return self.rig.run_as_user(["./build.sh", *arguments], cwd=self.work, env={**given, **env})

    def verify(self, sif: str, **env: str) -> tuple[int, dict[str, Any]]:
        """Verify the container; return exit code and answer."""
        done = self.matrix("verify", "--image", sif, "--format", "json", **env)
        document = json.loads(done.stdout)
        assert "verdict" in document, document
        return done.returncode, document


@pytest.fixture(scope="module")
def cotainr(rig: Rig) -> Path:
    """Install the real cotainr into an environment of the user's."""
    folder = rig.work() / "cotainr"
    for command in (
        [rig.python, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "-q", COTAINR],
    ):
        done = rig.run_as_user(command)
        assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copy(RIG / "standin_download.py", packages)
    (packages / "standin_download.pth").write_text("import standin_download\n")
    shutil.copy(RIG / INSTALLER, folder)  # the user may not look into root's directories
    return folder / "bin" / "cotainr"


@pytest.fixture(scope="module")
def project(rig: Rig, cotainr: Path) -> Project:
    """Resolve, compile the extension in the base image, publish all wheels, and write env.yml."""
    one = Project(rig, rig.work(), cotainr)
    (one.work / "facts").mkdir()
    (one.work / "facts" / "tinyext.toml").write_text(FACTS)
    (one.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    target = ["--site", "local", "--backend", "rocm", "--gfx90a", "--driver", "30.30", "--python", "3.11"]
    good(one.matrix("resolve", "tinyext", "torch==2.13.0", *target, "--base-image", str(rig.image)))
    (one.work / "made").mkdir()
    (one.work / "made" / "tinyext.hip").write_text(SOURCE)
    (one.work / "made" / "triton.py").write_text('"""A stand-in for triton, with nothing in it."""\n')
    subprocess.run(["chown", "-R", "--reference", str(one.work), str(one.work)], check=True)
    bound = ["--bind", f"{one.work / 'made'}:/work"]
    line = ["apptainer", "--silent", "exec", "--containall", *bound, str(rig.image), "sh", "-c", COMPILE]
    good(rig.run_as_user(line, cwd=one.work))
    lock = read_lock(one.work / "matrix.lock")
    triton = next(pick for pick in lock.picks if pick.name.startswith(("triton", "pytorch-triton")))
    wheels = [
        rig.torch,
        wheel(one.work, "tinyext", PINNED, "cp311-abi3-linux_x86_64", one.work / "made" / "tinyext.abi3.so"),
        wheel(one.work, triton.name, triton.pinned, "py3-none-any", one.work / "made" / "triton.py"),
    ]
    good(rig.run_python("-c", PUBLISH, "index", *map(str, wheels), cwd=one.work))
    good(one.matrix("env", "--for", "cotainr", "-o", "env.yml"))
    return one


@pytest.fixture
def hidden_certificates(rig: Rig) -> Iterator[Path]:
    """Return a copy of this machine's certificates under a path that containers do not have."""
    folder = Path(tempfile.mkdtemp(dir="/srv", prefix="rocm-matrix-"))
    try:
        folder.chmod(0o755)
        file = folder / "certificates.pem"
        shutil.copyfile(os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or "", file)
        file.chmod(0o644)
        inside = ["apptainer", "--silent", "exec", str(rig.image), "test", "-e", str(file)]
        assert rig.run_as_user(inside).returncode == 1
        yield file
    finally:
        shutil.rmtree(folder)


def good(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def wheel(folder: Path, name: str, version: str, tag: str, file: Path) -> Path:
    """Make a wheel of one file."""
    stem = f"{name.replace('-', '_')}-{version}"
    needs = f"Requires-Dist: torch=={TORCH}\n" if file.suffix == ".so" else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    pure = str(file.suffix == ".py").lower()
    about = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    members = {
        file.name: file.read_bytes(),
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": about.encode(),
    }
    path = folder / f"{stem}-{tag}.whl"
    with WheelFile(str(path), "w") as sink:
        for member, data in members.items():
            sink.writestr(member, data)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("route", ["bind", pytest.param("loopback", marks=pytest.mark.long)])
def test_cotainr_builds_container_with_working_extension(project: Project, route: str) -> None:
    sif = f"{route}.sif"
    done = project.build(sif, *(["--route", route] if route == "loopback" else []))
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert f"route {route}:" in output
    for name in ("SINGULARITY_BIND", "SINGULARITYENV_PYTHONPATH", "TMPDIR", "PIP_USER"):
        assert f"unset {name}:" in output
    code, answer = project.verify(sif)
    found = {one["id"]: one for one in answer["findings"]}
    assert code == 0, [one for one in answer["findings"] if one["severity"] == "error"]
    assert answer["verdict"] == "sound"
    assert answer["distributions"]["tinyext"] == PINNED
    assert answer["distributions"]["torch"] == TORCH
    assert answer["python"]["path"].startswith("/opt/cotainr/conda/envs/conda_container_env/")
    assert found["verify-pins"]["message"].startswith("3 of 3 ")
    assert found["probe-object"]["evidence"]["member"].endswith("/site-packages/tinyext.abi3.so")
    assert any(path.endswith("/site-packages/tinyext.abi3.so") for path in answer["libraries"])
    assert {"verify-pip-check", "verify-library", "verify-gpu-not-judged"} <= found.keys()
    assert answer["not_judged"] >= 1


def test_verify_reports_defects_of_container(project: Project) -> None:
    """The base image lacks everything that the lock pins, and the user's own packages shadow it."""
    own = project.work / "own" / "lib" / "python3.11" / "site-packages"
    (own / "pip-99.dist-info").mkdir(parents=True)
    (own / "pip-99.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 99\n")
    code, answer = project.verify(str(project.rig.image), PYTHONUSERBASE=str(project.work / "own"))
    found = [one["id"] for one in answer["findings"]]
    assert (code, answer["verdict"]) == (1, "defective")
    assert found.count("verify-pin-missing") == 3
    assert "verify-torch-failed" in found
    assert {"verify-user-site", "verify-user-site-adds"} & set(found)


def test_failed_build_keeps_exit_code(project: Project) -> None:
    command = [str(project.cotainr), "build", "x.sif", "--base-image", "no-such.sif"]
    bare = project.rig.run_as_user(command, cwd=project.work)
    done = project.matrix("run", "--", *command)
    assert bare.returncode != 0
    assert done.returncode == bare.returncode
    assert "no-such.sif" in done.stdout + done.stderr


def tutorial_commands() -> list[list[str]]:
    """Return the commands of the tutorial that build wheels."""
    section = (PROJECT / "docs" / "tutorial.md").read_text().partition("## Build the wheels\n")[2]
    return [shlex.split(line, comments=True) for line in section.split("```")[1].strip().splitlines()]


@dataclass(frozen=True)
class Followed:
    """A user's directory in which the tutorial's commands for GPUs ran."""

    user: Project
    env: dict[str, str]

    def audit(self, *options: str) -> dict[str, Any]:
        """Audit the wheel of DeepSpeed."""
        (wheel,) = (self.user.work / "index" / "simple" / "deepspeed").glob("*.whl")
        done = self.user.matrix("audit", str(wheel), *options, "--format", "json")
        (row,) = json.loads(done.stdout)["wheels"]
        assert isinstance(row, dict)
        return row


@pytest.fixture(scope="module")
def tutorial(rig: Rig, cotainr: Path) -> Followed:
    """Run the tutorial's commands, with the rig's image, driver and Python, and one of DeepSpeed's ops."""
    user = Project(rig, rig.work(), cotainr)
    links = rig.work()
    shutil.copy(rig.torch, links)
    env = {"PIP_FIND_LINKS": str(links), "PIP_RETRIES": "0"}
    commands = tutorial_commands()
    assert [command[:2] for command in commands] == [
        ["matrix", name] for name in ("resolve", "fetch", "build-wheels", "env")
    ]
    resolve, *others = (
        [str(rig.image) if word.endswith(".sif") else word for word in command[1:]] for command in commands
    )
    good(user.matrix(*resolve, "--driver", "30.30", "--python", "3.11", **env))
    picks = read_lock(user.work / "matrix.lock").picks
    triton = next(pick for pick in picks if pick.name.startswith("triton"))
    empty = user.work / "triton.py"
    empty.write_text('"""A stand-in for triton, with nothing in it."""\n')
    wheel(links, triton.name, triton.pinned, "py3-none-any", empty)
    for command in others:
        more = ["--ops", "deepspeed:fused_adam"] if command[0] == "build-wheels" else []
        good(user.matrix(*command, *more, **env))
    return Followed(user, env)


def test_tutorial_builds_requested_op(tutorial: Followed) -> None:
    found = tutorial.audit("--gfx90a")
    assert found["verdict"] == "sound"
    assert set(map(tuple, found["code_objects"].values())) == {("gfx90a",)}
    older = tutorial.audit("--glibcxx", "3.4.1")
    assert "libstdcxx-too-new" in {finding["id"] for finding in older["findings"]}
    (statement,) = (tutorial.user.work / "index" / "provenance").glob("deepspeed-*.json")
    findings = results_of(json.loads(statement.read_text()))["findings"]
    assert any("fused_adam" in finding["message"] for finding in findings if finding["id"] == "probe-ops")


def test_tutorial_builds_verified_container(tutorial: Followed, hidden_certificates: Path) -> None:
    """build.sh replaces a container only after success, and the certificates that it is told to use work."""
    user = tutorial.user
    sif = user.work / "container.sif"
    sif.write_text("the container of last time")
    shutil.copystat(user.work / "env.yml", sif)
    subprocess.run(["chown", "--reference", str(user.work), str(sif)], check=True)
    before = {path.name for path in user.work.iterdir()}
    failed = user.build_script(**tutorial.env, **{VARIABLE: "/nowhere"})
    assert failed.returncode not in {0, 3}, failed.stderr
    assert sif.read_text() == "the container of last time"
    assert {path.name for path in user.work.iterdir()} == before
    variables = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    certificates = dict.fromkeys(variables, str(hidden_certificates))
    done = user.build_script("container.sif", "-v", "--no-color", **tutorial.env, **certificates)
    good(done)
    count = len(read_lock(user.work / "matrix.lock").distributions)
    assert f"{count} distributions match the lock." in done.stdout
    assert done.stdout.endswith("Built ./container.sif\n")
    assert str(hidden_certificates) not in done.stdout + done.stderr
    assert {path.name for path in user.work.iterdir()} == before
    code, answer = user.verify("container.sif")
    errors = [finding for finding in answer["findings"] if finding["severity"] == "error"]
    messages = [finding["message"] for finding in errors]
    assert code == 1  # flash-attn imports triton, which is a stand-in here
    assert all(text.startswith("import flash_attn") and "triton" in text for text in messages), errors
    loaded = [finding["message"] for finding in answer["findings"] if finding["id"] == "probe-object"]
    assert any("fused_adam_op" in message for message in loaded), answer["findings"]


LARGE = ("jupyterlab", "scikit-learn", "mkdocs-material", "sphinx", "soupsieve<2.9", "pymdown-extensions<13")
"""More than a hundred distributions with their dependencies, all real. Newer releases of the last two
require a newer Python 3.11 than that of the rig's image; conda would install the newest."""


@pytest.mark.timeout(2400)
def test_large_environment_is_built_without_any_index(rig: Rig, cotainr: Path) -> None:
    user = Project(rig, rig.work(), cotainr)
    good(user.matrix("resolve", *LARGE, "--backend", "cpu", "--python", "3.11"))
    lock = with_image(read_lock(user.work / "matrix.lock"), BaseImage(name="base", path=str(rig.image)))
    (user.work / "matrix.lock").write_text(dumps(lock))
    count = len(lock.distributions)
    assert lock.is_complete
    assert count > 100
    good(user.matrix("fetch", "--wheelhouse", "wheels"))
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    offline = ["env", "--for", "cotainr", "--hashes", "--wheelhouse", "wheels", "-o", "."]
    good(user.matrix(*offline, **nowhere))
    done = user.build_script("large.sif", **nowhere)
    good(done)
    assert f"{count} distributions match the lock." in done.stdout
    code, answer = user.verify("large.sif")
    found = {finding["id"]: finding["message"] for finding in answer["findings"]}
    assert code == 0, answer["findings"]
    assert found["verify-pins"].startswith(f"{count} of {count} ")
    assert found["verify-pip-check"] == "pip check: no broken requirements"
