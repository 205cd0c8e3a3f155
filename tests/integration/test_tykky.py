"""A lock becomes an environment of tykky; its programs run, and another lock updates it.

tykky is not available in CI: ``tests/rig/standin_tykky.sh`` stands in for it, unless ROCM_MATRIX_TYKKY names
the directory of the real tykky, with PyYAML for its Python. Both run the real pip in a container with this
machine's glibc. conda is always a stand-in. The wheels are tiny, except that of an extension which `matrix`
compiles.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.audit.platform_tags import too_new_glibc
from builders.index import Index
from matrix.api import write_lock
from resolver.indexes import File
from resolver.model import Distribution
from tests.rig.rig import HERE as RIG
from tests.rig.rig import USER, Rig
from tests.rig.slurm import PARTITION, Slurm, one_node
from tests.support.locks import local_file, lock_of, locked_pick
from tests.support.projects import rows_of, write_catalog, write_sdist
from tests.support.tiny import tiny_index, tiny_wheel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
REAL = os.environ.get("ROCM_MATRIX_TYKKY", "")
TORCH = "2.13.0+cpu"
SHADOW = 'VERSION = "of the user"\n'
PROGRAMS = ("bash", "cat", "cp", "find", "ls", "sh", "test")
"""The programs that tykky needs in its base container; all others come from the machine."""
PROGRAMS_OF_TYKKY = ("conda-containerize", "pip-containerize")
VERSIONS = (
    "import fused, torch, sys; print(fused.VERSION, torch.VERSION, torch.__file__.startswith(sys.prefix))"
)
COMPILED = {
    "setup.py": """
from setuptools import Extension, setup
setup(name="compiled", version="1.0", ext_modules=[Extension("compiled", ["compiled.c"])])
""",
    "compiled.c": """
#include <Python.h>
#include <stdlib.h>
static PyObject *number(PyObject *self, PyObject *text) {
    return PyLong_FromLong(strtol(PyUnicode_AsUTF8(text), NULL, 10));
}
static PyMethodDef methods[] = {{"number", number, METH_O, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, methods};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
""",
}
"""An extension without torch. From glibc 2.38, its strtol is a new symbol, which older versions lack."""
GLIBC = platform.libc_ver()[1]
PARTITION_OF_SITE = f"""
[[partition]]
site = "local"
name = "{PARTITION}"
backend = "cpu"
max-hours = 1
status = "observed"
source = "tests"
"""


@dataclass(frozen=True)
class User:
    """A user's directory, with tykky on PATH and variables that disturb installations."""

    rig: Rig
    work: Path
    tool: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.tool / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return self.rig.run_as_user(command, self.work, {**self.env, "PATH": path, **env})

    def lock(self, *versions: tuple[str, str], consumer: str = "tykky") -> None:
        """Publish wheels, lock them, and write the files for tykky."""
        index = Index(self.work / "index")
        wheels = self.work / "torch" / "simple" / "torch"
        torch = local_file(wheels / f"torch-{TORCH}-py3-none-any.whl", index=wheels.parent.as_uri())
        picks = [locked_pick("torch", TORCH, torch, index=torch.index)]
        for name, version in versions:
            made = tiny_wheel(self.work / "made", name, version)
            if not (index.simple / name / made.name).exists():
                index.publish(made, {"build_key": made.name})
            picks.append(built(name, version, local_file(made)))
        lock = lock_of(*picks)
        target = replace(lock.target, python="3.11")
        write_lock(replace(lock, target=target), self.work / "matrix.lock")
        self.own()
        done = self.rig.matrix(
            "env", "--for", consumer, "-o", ".", cwd=self.work, env={"PIP_FIND_LINKS": str(self.work)}
        )
        assert done.returncode == 0, done.stderr

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work, env=self.env)

    @property
    def wheel(self) -> Path:
        """The wheel of the extension, which `matrix` compiled."""
        (wheel,) = (self.work / "index" / "simple" / "compiled").glob("*.whl")
        return wheel

    def start(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `matrix` with its messages in a file."""
        env = {**self.rig.user_environment(), **self.rig.with_project, **self.env}
        as_user: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": ()}
        with log.open("w") as sink:
            return subprocess.Popen(
                [self.rig.python, "-m", "matrix", *arguments],
                cwd=self.work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                **(as_user if os.geteuid() == 0 else {}),
            )

    def own(self) -> None:
        """Make the user the owner of all files."""
        subprocess.run(["chown", "-R", "--reference", str(self.work), str(self.work)], check=True)

    def versions(self, prefix: str = "env") -> list[str]:
        """Return the versions that the environment's Python imports, and whether torch is its own."""
        done = self.run(f"{prefix}/bin/python", "-c", VERSIONS)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


def built(name: str, version: str, file: File) -> Distribution:
    pick = locked_pick(name, version, file)
    return replace(pick, origin="build", version=version.partition("+")[0], wheel_version=version)


@pytest.fixture(scope="module")
def tool(rig: Rig) -> Path:
    """Return a directory with conda-containerize, a Python for the fake conda, and a base container."""
    folder = rig.work()
    (folder / "bin").mkdir()
    for name in ("standin_miniforge.sh", "standin_tykky.sh"):
        shutil.copy(RIG / name, folder)
    unpack = f"apptainer -s exec --containall {rig.image} tar -C /opt -c python3.11 | tar -x"
    done = rig.run_as_user(["bash", "-c", f"set -o pipefail; {unpack}"], folder)
    assert done.returncode == 0, done.stderr
    make_container(folder)
    if REAL:
        configure_real(folder)
    else:
        for program in PROGRAMS_OF_TYKKY:
            (folder / "bin" / program).symlink_to("../standin_tykky.sh")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder


def make_container(folder: Path) -> None:
    """Pack a few of this machine's programs with their libraries."""
    root = folder / "root"
    for name in ("dev", "etc", "home", "opt", "proc", "root", "sys", "tmp", "usr/bin", "var/tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    programs = [f"/usr/bin/{name}" for name in PROGRAMS]
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}
    copy = ["cp", "-L", "--parents", *programs, *sorted(libraries), str(root)]
    subprocess.run(copy, check=True)
    command = ["mksquashfs", str(root), str(folder / "small.sif"), "-all-root", "-quiet", "-no-progress"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / "small.sif").chmod(0o644)
    shutil.rmtree(root)


def configure_real(folder: Path) -> None:
    """Configure the real tykky with LUMI's settings and the stand-in for Miniforge, and add it to PATH."""
    lumi = (Path(REAL) / "configs" / "lumi.yaml").read_text()
    settings = {
        "container_src: auto": f"container_src: {folder}/small.sif",
        "conda_version: latest": "conda_version: stand-in",
        "/usr/bin/singularity": f"{folder}/bin/singularity",
    }
    for old, new in settings.items():
        assert old in lumi
        lumi = lumi.replace(old, new)
    (folder / "conf.yaml").write_text(lumi)
    for program in PROGRAMS_OF_TYKKY:
        (folder / "bin" / program).symlink_to(Path(REAL) / "bin" / program)
    (folder / "bin" / "singularity").symlink_to(shutil.which("apptainer") or "apptainer")
    download = folder / "bin" / "curl"
    download.write_text(
        f'#!/bin/bash\n[ "$3" = --output ] && exec cp {folder}/standin_miniforge.sh "$4"\nexit 1\n'
    )
    download.chmod(0o755)


@pytest.fixture(scope="module")
def user(rig: Rig, tool: Path) -> User:
    """Return a user whose own packages pip would find installed, and Python would import first."""
    work = rig.work()
    tiny_index(work / "torch", {"torch": [(TORCH, [])]})
    own = work / "own"
    packages = own / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for folder in (packages, work / "path"):
        info = folder / f"torch-{TORCH}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n")
    for name in ("torch", "fused"):
        (packages / f"{name}.py").write_text(SHADOW)
    env = {
        "CW_BUILD_TMPDIR": str(work / "tmp"),
        "CW_GLOBAL_YAML": str(tool / "conf.yaml"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": (work / "none").as_uri(),
        "PYTHONUSERBASE": str(own),
        "STANDIN_IMAGE": str(tool / "small.sif"),
        "STANDIN_PYTHON": str(tool / "python3.11"),
        "USER": "hpc",
    }
    (work / "tmp").mkdir()
    return User(rig, work, tool, env)


@pytest.fixture(scope="module")
def environment(user: User) -> User:
    """Build the environment of the first lock."""
    user.lock(("fused", "1.0+cpu.torch2.13.0"), ("extra", "1.0+cpu.torch2.13.0"))
    done = user.run("bash", "build.sh", "env", PYTHONPATH=str(user.work / "path"), PIP_USER="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "3 distributions match the lock." in done.stdout
    return user


def test_programs_use_packages_of_the_lock(environment: User) -> None:
    assert environment.versions() == ["1.0+cpu.torch2.13.0", TORCH, "True"]
    assert environment.run("env/bin/pip", "--version").stdout.startswith("pip ")
    done = environment.rig.matrix(
        "check", "env/bin/python", "--run", "--format", "json", cwd=environment.work, env=environment.env
    )
    (answer,) = json.loads(done.stdout)["things"]
    assert done.returncode in {0, 4}, answer["findings"]


def test_failed_build_keeps_environment(environment: User) -> None:
    with (environment.work / "req.txt").open("a") as file:
        file.write("absent==1.0\n")
    before = sorted(path.name for path in environment.work.iterdir())
    done = environment.run("bash", "build.sh", "env")
    assert done.returncode in {1, 143}  # the real tykky also ends itself
    assert "No matching distribution found for absent==1.0" in done.stdout + done.stderr
    assert sorted(path.name for path in environment.work.iterdir()) == before
    assert environment.versions() == ["1.0+cpu.torch2.13.0", TORCH, "True"]


def test_update_replaces_what_has_changed(environment: User) -> None:
    """An update would keep distributions that the new lock lacks, so it fails and changes nothing."""
    environment.lock(("fused", "2.0+cpu.torch2.13.0"))
    done = environment.run("bash", "build.sh", "--update", "env")
    assert done.returncode == 3
    assert "extra 1.0+cpu.torch2.13.0 is not in the lock" in done.stderr
    assert "build again, without --update" in done.stderr
    assert environment.versions() == ["1.0+cpu.torch2.13.0", TORCH, "True"]
    environment.lock(("fused", "2.0+cpu.torch2.13.0"), ("extra", "1.0+cpu.torch2.13.0"))
    done = environment.run("bash", "build.sh", "--update", "env")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert f"Requirement already satisfied: torch=={TORCH}" in done.stdout
    assert environment.versions() == ["2.0+cpu.torch2.13.0", TORCH, "True"]
    assert {path.name for path in environment.work.glob("env*")} == {"env", "env.yml", "environment.sh"}


def test_form_with_pip_uses_the_python_of_the_machine(environment: User) -> None:
    """The virtual environment is made of the python3 on PATH, which the lock must name."""
    environment.lock(("fused", "1.0+cpu.torch2.13.0"), consumer="tykky-pip")
    done = environment.run("bash", "build.sh", "with-pip")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert environment.versions("with-pip") == ["1.0+cpu.torch2.13.0", TORCH, "True"]


@pytest.fixture
def compiling(user: User, request: pytest.FixtureRequest) -> User:
    """Return a user with a catalog that has an extension for a backend, and its source in the cache."""
    backend: str = request.param
    work = user.rig.work()
    cache = work / "cache"
    digest = write_sdist(cache / "matrix", "compiled", COMPILED)
    row = rows_of("compiled", digest, ["setuptools", "wheel"], must_contain=["compiled*.so"])
    kinds: dict[str, dict[str, object]] = {
        "package": {},
        "release": {"backend": [backend]},
        "recipe": {"backend": backend},
    }
    write_catalog(work / "facts" / "compiled.toml", [{kind: row[kind] | kinds[kind] for kind in kinds}])
    settings = f'site = "local"\nbackend = "{backend}"\npython = "3.11"\ncatalog = ["facts"]\n'
    (work / "matrix.toml").write_text(settings)
    (work / "tmp").mkdir()
    names = ("CW_GLOBAL_YAML", "STANDIN_IMAGE", "STANDIN_PYTHON", "USER")
    env = {name: user.env[name] for name in names}
    env |= {"CW_BUILD_TMPDIR": str(work / "tmp"), "XDG_CACHE_HOME": str(cache)}
    env |= {"PATH": f"{user.tool / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    made = User(user.rig, work, user.tool, env)
    made.own()
    return made


@pytest.fixture
def slurm(rig: Rig) -> Iterator[Slurm]:
    """Start Slurm with files that the ordinary user can read."""
    root = rig.root / "slurm-tykky"
    root.mkdir()
    with one_node(root) as made:
        yield made


@pytest.mark.parametrize("compiling", ["rocm"], indirect=True)
def test_wheel_for_a_newer_glibc_is_refused_with_the_reason(compiling: User) -> None:
    """The pip of tykky refuses the wheel, too: the check tells the truth, and earlier."""
    target = ("--gfx90a", "--driver", "30.30", "--base-image", str(compiling.rig.image))
    request = ("resolve", "compiled", *target)
    for words in (request, ("build-wheels",)):
        done = compiling.matrix(*words)
        assert done.returncode == 0, done.stderr
    required = too_new_glibc([compiling.wheel.name], GLIBC)
    assert required

    conflict = compiling.matrix(*request, "--for", "tykky", "--no-lock")
    assert conflict.returncode == 1
    assert f"- tykky uses the glibc of this machine, {GLIBC}\n" in conflict.stdout

    written = compiling.matrix("env", "--for", "tykky", "-o", ".")
    warning = f"requires glibc {required}, and this machine has glibc {GLIBC}"
    assert warning in " ".join(written.stderr.split())
    refused = compiling.run("bash", "build.sh", "env")
    assert refused.returncode == 3
    assert f"the wheels require glibc {required}" in refused.stderr
    forced = compiling.run("bash", "build.sh", "env", MATRIX_GLIBC=required)
    assert forced.returncode in {1, 143}
    assert "No matching distribution found for compiled==1.0" in forced.stdout + forced.stderr
    assert not (compiling.work / "env").exists()


@pytest.mark.parametrize("compiling", ["cpu"], indirect=True)
def test_compiled_wheel_runs_in_tykky(compiling: User) -> None:
    done = compiling.matrix("build-container", "env", "compiled", "--for", "tykky")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.endswith("env is ready: 1 distribution, verified.\n")
    assert "manylinux" in compiling.wheel.name
    assert not too_new_glibc([compiling.wheel.name], GLIBC)
    program = "import compiled; print(compiled.number('42'), compiled.__file__)"
    called = compiling.run("env/bin/python", "-c", program)
    number, file = called.stdout.split()
    assert (number, file.rpartition("/")[2][:9]) == ("42", "compiled."), called.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compiling", ["cpu"], indirect=True)
def test_wheel_is_compiled_in_a_job_and_the_container_made_after_it(compiling: User, slurm: Slurm) -> None:
    """On a login node jobs are the default; they outlive the command, and its repetition continues."""
    work = compiling.work
    with (work / "facts" / "compiled.toml").open("a") as facts:
        facts.write(PARTITION_OF_SITE)
    user = replaced(compiling, env={**compiling.env, **slurm.env})
    command = ("build-container", "env", "compiled", "--for", "tykky")

    planned = user.matrix(*command, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"in Slurm jobs, partition {PARTITION}" in " ".join(planned.stdout.split())

    log = work / "killed.txt"
    killed = user.start(log, *command)
    # The job itself takes about a second.
    wait_until(lambda: "Submitted job" in log.read_text() or killed.poll() is not None, patience=120)
    assert killed.poll() is None, log.read_text()
    killed.kill()
    killed.wait()
    assert not (work / "env").exists()
    messages = log.read_text()
    assert messages.index("2/6 fetch") < messages.index("3/6 build-wheels") < messages.index("Submitted job")
    (number,) = re.findall(r"Submitted job (\d+)", messages)
    assert slurm.ended(number)["JobState"] == "COMPLETED"
    written = user.wheel.stat().st_mtime_ns

    done = user.matrix(*command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.endswith("env is ready: 1 distribution, verified.\n")
    assert user.wheel.stat().st_mtime_ns == written
    assert len(list((work / "index" / ".matrix" / "logs").glob("slurm-*.log"))) == 1
    assert user.matrix(*command).stdout == "Nothing to do: env is up to date, verified.\n"
