"""An image with torch is extended by a virtual environment, and by a definition file, as an ordinary user.

The image is that of `tests.support.laif`, which describes the differences from a real image. The extension is
real code for gfx90a, compiled in its base image; nothing runs on a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resolver.lock import read_lock
from tests.rig.rig import Rig
from tests.support.laif import NUMPY, make_laif_image
from tests.support.tiny import wheel_of
from tests.support.web_server import web_server

pytestmark = pytest.mark.integration
TORCH = "2.13.0+rocm7.2"
LABEL = "+rocm7.2.torch2.13.0.gfx90a"
FACTS = """
[[package]]
name = "{name}"
title = "a small extension"
import-name = "{name}"
status = "observed"
source = "tests"
[[recipe]]
package = "{name}"
backend = "rocm"
undeclared = ["setuptools", "torch"]
imports = ["{name}"]
status = "observed"
source = "tests"
"""
RELEASE = """
[[release]]
package = "{name}"
version = "{version}"
git = {{ url = "https://example.org/{name}.git", commit = "{commit}" }}
backend = ["rocm"]
status = "observed"
source = "tests"
"""
SOURCE = """
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <hip/hip_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tinyext", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_tinyext(void) { return PyModule_Create(&module); }
"""
COMPILE = """
cd /work && hipcc -x hip --offload-arch=gfx90a -O1 -shared -fPIC -I/opt/python3.11/include/python3.11 \
    tinyext.hip -o tinyext.abi3.so
"""
PUBLISH = """
import sys
from pathlib import Path
from builders.index import Index
for wheel in sys.argv[2:]:
    Index(Path(sys.argv[1])).publish(Path(wheel), {})
"""
PROGRAM = """
import json, sys
from importlib import metadata
import einops, numpy, tinyext, tinyother, torch
modules = (einops, numpy, tinyext, tinyother, torch)
print(json.dumps({
    "prefix": sys.prefix,
    "files": {module.__name__: module.__file__ for module in modules},
    "versions": {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()},
}))
"""


@dataclass(frozen=True)
class User:
    """A user's directory with lock, index and scripts, and the image."""

    rig: Rig
    work: Path
    image: Path

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.rig.run_as_user(command, cwd=self.work, env=env)

    def bash(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", script, *arguments, **env)

    def resolve(self, *requirements: str) -> None:
        target = ["--site", "local", "--backend", "rocm", "--gfx90a", "--driver", "30.30"]
        kept = ["--base-image", str(self.image), "--keep-installed", "image"]
        good(self.matrix("resolve", *requirements, "torch", *target, *kept))

    def seen(self) -> Any:
        """Return the paths and versions that a program in the environment reports."""
        done = self.bash("run.sh", "python", "-c", PROGRAM)
        good(done)
        return json.loads(done.stdout)


def good(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def laif(rig: Rig) -> Path:
    """Return the image with torch."""
    return make_laif_image(rig)


@pytest.fixture(scope="module")
def user(rig: Rig, laif: Path) -> User:
    """Resolve for the image, compile the extension in its base image, and publish the wheels."""
    one = User(rig, rig.work(), laif)
    (one.work / "facts").mkdir()
    for name, versions in {"tinyext": ("1.0", "1.1"), "tinyother": ("1.0",)}.items():
        commits = {version: hashlib.sha1(version.encode()).hexdigest() for version in versions}
        releases = "".join(
            RELEASE.format(name=name, version=version, commit=commit) for version, commit in commits.items()
        )
        (one.work / "facts" / f"{name}.toml").write_text(f"schema = 1\n{FACTS.format(name=name)}{releases}")
    (one.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    made = one.work / "made"
    made.mkdir()
    (made / "tinyext.hip").write_text(SOURCE)
    subprocess.run(["chown", "-R", "--reference", str(one.work), str(one.work)], check=True)
    inside = ["apptainer", "--silent", "exec", "--containall", "--bind", f"{made}:/work", str(rig.image)]
    good(one.run(*inside, "sh", "-c", COMPILE))
    compiled = {"tinyext.abi3.so": (made / "tinyext.abi3.so").read_bytes()}
    needs = (f"torch=={TORCH}", "numpy", "einops")
    for version in ("1.0", "1.1"):
        tag = "cp311-abi3-linux_x86_64"
        wheel_of(made, "tinyext", f"{version}{LABEL}", compiled, requires=needs, tag=tag)
    wheel_of(made, "tinyother", f"1.0{LABEL}", {"tinyother.py": b"VALUE = 1\n"})
    wheels = sorted(map(str, made.glob("*.whl")))
    good(rig.run_python("-c", PUBLISH, "index", *wheels, cwd=one.work))
    one.resolve("tinyext==1.0", "tinyother", "einops", "numpy")
    good(one.matrix("env", "--for", "venv", "-o", "."))
    return one


def test_image_with_torch_is_kept_as_it_is(user: User) -> None:
    lock = read_lock(user.work / "matrix.lock")
    kept = {pick.name: pick.version for pick in lock.distributions if pick.origin == "preinstalled"}
    assert kept["torch"] == TORCH
    assert kept["numpy"] == NUMPY
    assert {pick.name for pick in lock.distributions if pick.origin == "build"} == {"tinyext", "tinyother"}
    assert {pick.name for pick in lock.distributions if pick.origin == "published"} == {"einops"}


def test_environment_on_image_is_created_packed_verified_and_updated(user: User) -> None:
    changed = user.bash("create_venv.sh", MATRIX_BASE_IMAGE=str(user.rig.image))
    assert changed.returncode == 3
    assert "the base image has changed" in changed.stderr
    good(user.bash("create_venv.sh"))
    (packages,) = (user.work / "matrix-venv").glob("lib/python3.*/site-packages")
    names = {path.name.split("-")[0] for path in packages.glob("*.dist-info")}
    assert names - {"pip", "setuptools"} == {"einops", "tinyext", "tinyother"}
    good(user.bash("create_squashfs.sh"))
    assert not (user.work / "matrix-venv").exists()
    seen = user.seen()
    assert seen["prefix"] == "/user-software"
    files = seen["files"]
    assert all(files[name].startswith("/opt/venv/lib/") for name in ("numpy", "torch"))
    assert all(files[name].startswith("/user-software/lib/") for name in ("einops", "tinyext", "tinyother"))
    verified = user.matrix("check", "bash run.sh python", "--run", "--format", "json")
    (answer,) = json.loads(verified.stdout)["things"]
    assert verified.returncode in {0, 4}, answer["findings"]
    assert not any(finding["id"] == "verify-twice" for finding in answer["findings"])

    user.resolve("tinyext==1.1", "tinyother", "einops", "numpy")
    good(user.matrix("env", "--for", "venv", "-o", "."))
    failed = user.bash("create_venv.sh", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    assert failed.returncode == 3
    assert "an existing environment has not changed" in failed.stderr
    assert user.seen() == seen
    good(user.bash("create_venv.sh"))
    updated = user.seen()
    assert updated["versions"] == seen["versions"] | {"tinyext": f"1.1{LABEL}"}
    good(user.bash("create_squashfs.sh"))
    assert user.seen() == updated
    assert sorted(path.name for path in user.work.glob("matrix-venv*")) == ["matrix-venv.sqsh"]


def test_layer_holds_only_what_the_image_lacks(user: User) -> None:
    """The layer has a pure package and an extension; another numpy would be a conflict."""
    others = user.work / "others"
    others.mkdir()
    compiled = {"tinyext.abi3.so": (user.work / "made" / "tinyext.abi3.so").read_bytes()}
    wheel_of(others, "cext", "1.0", compiled, requires=("numpy", "torch"), tag="cp311-abi3-linux_x86_64")
    wheel_of(others, "notriton", "1.0", {"triton.py": b"VALUE = 1\n"})
    target = ["--site", "local", "--backend", "rocm", "--gfx90a", "--driver", "30.30"]
    kept = ["--base-image", str(user.image), "--executor", "local", "--format", "json"]

    def make(*requirements: str, out: str = "x.sqsh") -> subprocess.CompletedProcess[str]:
        words = ["build-layer", out, *requirements, *target, *kept]
        return user.rig.matrix(*words, cwd=user.work, env={"PIP_FIND_LINKS": str(others)})

    refused = make("cext", f"numpy!={NUMPY}")
    assert refused.returncode == 1, refused.stderr
    (core,) = json.loads(refused.stdout)["core"]
    assert core["text"] == f"you asked for numpy!={NUMPY}, but the base image contains numpy {NUMPY}"

    good(make("cext", "einops", "numpy"))
    first = (user.work / "x.sqsh").read_bytes()
    picks = read_lock(user.work / "x.lock").distributions
    assert {pick.name for pick in picks if pick.origin != "preinstalled"} == {"einops", "cext"}
    shutil.rmtree(user.work / "x.sqsh.files")
    done = make("cext", "einops", "numpy")
    good(done)
    assert (user.work / "x.sqsh").read_bytes() == first
    layer = json.loads(done.stdout)["layer"]
    assert layer["hides"] == []
    wheels = [zipfile.ZipFile(path) for path in (user.work / "x.sqsh.files" / "wheels").glob("*.whl")]
    content = sum(member.file_size for wheel in wheels for member in wheel.infolist())
    assert len(wheels) == 2
    assert layer["size"] <= 1.05 * content
    program = "import einops, tinyext, numpy; print(numpy.__file__)"
    ran = user.run("bash", "-c", f"{layer['run']} -c '{program}'")
    good(ran)
    assert ran.stdout.startswith("/opt/venv/lib/")

    bind_environment(user)

    kept[1] = str(user.rig.image)
    good(make("einops", out="no-torch.sqsh"))
    assert {pick.name for pick in read_lock(user.work / "no-torch.lock").distributions} == {"einops"}
    kept[1] = str(user.image)

    other = make("einops", f"numpy>{NUMPY}", "--replace", "numpy", out="replaced.sqsh")
    good(other)
    layer = json.loads(other.stdout)["layer"]
    assert any(path.endswith("/numpy/__init__.py") for path in layer["hides"]), layer["hides"]
    assert not any("/torch" in path or "/triton" in path for path in layer["hides"])
    ran = user.run("bash", "-c", f"{layer['run']} -c '{program.replace('tinyext', 'torch')}'")
    good(ran)
    assert ran.stdout.startswith("/user-software/")

    hidden = make("notriton")
    assert hidden.returncode == 1, hidden.stdout + hidden.stderr
    assert "/opt/venv/lib/python3.11/site-packages/triton.py of triton-rocm" in hidden.stdout
    assert (user.work / "x.sqsh").read_bytes() == first


def bind_environment(user: User) -> None:
    """Bind a virtual environment to the layer: its Python sees what is in the layer and in the image."""
    run = user.work / "x.sqsh.files" / "run.sh"
    good(user.matrix("env", "--for", "module", "--lock", "x.lock", "--environment", str(run), "-o", "x.lua"))
    good(user.run("x.bin/python", "-m", "venv", "--without-pip", "mine"))
    good(user.run("x.bin/extend-venv-activate", "mine"))
    program = "import sys, einops, numpy; print(sys.prefix, einops.__file__, numpy.__file__)"
    ran = user.run("mine/bin/python", "-c", program, MATRIX_ENVIRONMENT=str(run))
    good(ran)
    prefix, of_layer, of_image = ran.stdout.split()
    assert prefix == str(user.work / "mine")
    assert of_layer.startswith("/user-software/lib/")
    assert of_image.startswith("/opt/venv/lib/")


SETUP = """
from setuptools import Extension, setup
setup(name="plainext", version="1.0", ext_modules=[Extension("plainext", ["plainext.c"])])
"""
SETUP_TORCH = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
setup(name="torchext", version="1.0", install_requires=["torch"], cmdclass={"build_ext": BuildExtension},
      ext_modules=[CppExtension("torchext", ["torchext.cpp"])])
"""
PLAIN = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "plainext", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_plainext(void) { return PyModule_Create(&module); }
"""
OF_TORCH = """
#include <Python.h>
#include <torch/version.h>
namespace at { int get_num_threads(); }
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "torchext", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_torchext(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddStringConstant(made, "headers", TORCH_VERSION);
    PyModule_AddIntConstant(made, "threads", at::get_num_threads());
    return made;
}
"""


def test_layer_is_compiled_against_the_torch_of_its_image(rig: Rig, laif: Path) -> None:
    """The image has a compiler. Both extensions are sdists; one includes and calls the image's torch."""
    one = User(rig, rig.work(), laif)
    sources = {"plainext": (SETUP, "c", PLAIN), "torchext": (SETUP_TORCH, "cpp", OF_TORCH)}
    (one.work / "sdists").mkdir()
    for name, (setup, suffix, source) in sources.items():
        tree = rig.work() / f"{name}-1.0"
        tree.mkdir()
        (tree / "setup.py").write_text(setup)
        (tree / f"{name}.{suffix}").write_text(source)
        (tree / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        shutil.make_archive(str(one.work / "sdists" / tree.name), "gztar", tree.parent, tree.name)
    named = [f"{name} @ {(one.work / 'sdists' / f'{name}-1.0.tar.gz').as_uri()}" for name in sources]
    words = ["build-layer", "x.sqsh", *named, "einops", "--base-image", str(one.image), "--format", "json"]
    target = ["--site", "local", "--backend", "rocm", "--gfx90a", "--driver", "30.30", "--executor", "local"]
    done = rig.matrix(*words, *target, cwd=one.work, env={"PIP_FIND_LINKS": str(rig.wheels)})
    good(done)
    document = json.loads(done.stdout)
    assert {wheel["name"]: wheel["state"] for wheel in document["wheels"]} == dict.fromkeys(sources, "built")
    program = (
        "import torch, einops, plainext, torchext; "
        "print(torchext.headers, torchext.threads == torch.get_num_threads());"
        "print(torch.__file__, torchext.__file__)"
    )
    ran = one.run("bash", "-c", f"{document['layer']['run']} -c '{program}'")
    good(ran)
    headers, same, torch, extension = ran.stdout.split()
    assert (headers, same) == (TORCH.partition("+")[0], "True")
    assert torch.startswith("/opt/venv/lib/")
    assert extension.startswith("/user-software/lib/")


@pytest.mark.parametrize("source", [pytest.param("index", marks=pytest.mark.long), "wheelhouse"])
def test_definition_extends_image(user: User, source: str) -> None:
    """The wheels of the index come from a server, and others from the index that this machine uses."""
    env = {
        f"APPTAINERENV_{name}": os.environ[name]
        for name in ("PIP_CERT", "PIP_INDEX_URL")
        if name in os.environ
    }
    definition, unpacked = f"{source}.def", f"{source}-image"
    with contextlib.ExitStack() as stack:
        if source == "index":
            url = stack.enter_context(web_server(user.work / "index"))
            good(user.matrix("env", "--for", "apptainer", "--index-url", f"{url}/simple/", "-o", definition))
            bound = [option for path in env.values() if Path(path).is_file() for option in ("--bind", path)]
        else:
            good(user.matrix("farm", "fetch", "--wheelhouse", "wheels"))
            good(user.matrix("env", "--for", "apptainer", "--wheelhouse", "wheels", "-o", definition))
            env, bound = {"APPTAINERENV_PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, []
        done = user.run("apptainer", "build", *bound, "--sandbox", unpacked, definition, **env)
        good(done)
    assert "distributions match the lock." in done.stdout + done.stderr
    assert not (user.work / unpacked / "opt" / "matrix-files").exists()
    inside = user.run("apptainer", "exec", unpacked, "python", "-c", PROGRAM)
    good(inside)
    seen = json.loads(inside.stdout)
    assert seen["prefix"] == "/opt/matrix"
    assert seen["files"]["torch"].startswith("/opt/venv/lib/")
    assert seen["files"]["numpy"].startswith("/opt/venv/lib/")
    if source == "wheelhouse":  # the other image has the same distributions
        check_image(user, unpacked, seen["files"])
    shutil.rmtree(user.work / unpacked)


def check_image(user: User, unpacked: str, files: Mapping[str, str]) -> None:
    """Check the image with programs in it and by its files, and compare it with the lock."""
    verified = user.matrix("check", unpacked, "--run", "--format", "json")
    (answer,) = json.loads(verified.stdout)["things"]
    assert verified.returncode in {0, 4}, answer["findings"]
    inspected = user.matrix("check", unpacked, "--format", "json")
    (document,) = json.loads(inspected.stdout)["things"]
    assert document["how"].endswith("its files were read"), inspected.stderr
    assert len(document["distributions"]) > len(files)
    assert not [change for change in document["changes"] if change["for_cuda"]]
    ids = {row["id"] for row in answer["findings"]}  # what the files show, and what was started
    assert ids >= {row["id"] for row in document["findings"]}
    compared = user.matrix("diff", unpacked, "matrix.lock", "--format", "json")
    differing = {row["name"] for row in json.loads(compared.stdout)["consequences"]}
    assert not differing & {"torch", "numpy", "python", "glibc", "rocm"}, compared.stdout
