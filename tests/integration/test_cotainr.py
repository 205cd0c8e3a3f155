"""The real cotainr, with the real Apptainer as an ordinary user, builds containers from our index.

Four things are fakes, marked as such: Miniforge's installer (``tests/rig/standin_miniforge.sh``), torch
(the rig's), triton (``tests/rig/standin_triton.py``) and Apex (``tests/packages/apex``). Apex and DeepSpeed
contain real code for gfx90a, compiled in the same base image; nothing runs on a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from uv import find_uv_bin

from builders.building.inputs import environment_of, requirements_in
from builders.index import Index
from matrix.api import write_lock
from resolver.lock import read_lock
from resolver.model import BaseImage, Resolution
from resolver.requirements import normalize_name
from tests.rig.rig import HERE as RIG
from tests.rig.rig import PROJECT, USER, Rig
from tests.rig.slurm import cluster
from tests.rig.standin_download import VARIABLE
from tests.support.fusedtiny import make_apex
from tests.support.locks import built_pick, lock_of, with_image
from tests.support.records import results_of
from tests.support.tiny import tiny_wheel, wheel_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]
COTAINR = "cotainr==2025.7.1"
LABEL = "+rocm7.2.torch2.13.0.gfx90a"
OPS = {"apex": "amp_C", "deepspeed": "fused_adam"}
"""The only op of each package that is compiled, to save time."""
APEX_REQUIRES = 15
"""The number of distributions besides torch that the wheel of the stand-in for Apex requires."""
FILES = "train.sif.files"
KILLED = {"3/6 build-wheels": 20.0, "5/6 container": 5.0}
"""The steps that are killed, and the seconds in which each begins to work. The other steps: `STOPS` in
tests/matrix/test_build_container.py."""
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
INSTALLER = "standin_miniforge.sh"
PACKAGES = "/opt/cotainr/conda/envs/conda_container_env/lib/python3.11/site-packages/"
"""The directory that cotainr installs into, in a container."""
DISTURBING = {"SINGULARITY_BIND": "/var/spool:/nowhere", "TMPDIR": "/opt", "PIP_USER": "1"}
"""Variables of a site's modules, and of a user, with which a build by cotainr alone fails."""
FOLDERS = ["apex", "bitsandbytes", "deepspeed", "flash_attn"]
JOB = """\
source train.sif.files/environment.sh
apptainer exec train.sif python train.py
"""


@dataclass(frozen=True)
class User:
    """A user's directory, and the user's cotainr."""

    rig: Rig
    work: Path
    cotainr: Path
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables in addition to those of the rig's user."""

    @property
    def lock(self) -> Resolution:
        return read_lock(self.work / "matrix.lock")

    @property
    def building(self) -> dict[str, str]:
        """Variables of every build: those that this machine needs, and some that make a user's build fail."""
        return {
            "PATH": f"{self.cotainr.parent}:/usr/local/bin:/usr/bin:/bin",
            VARIABLE: str(self.cotainr.parents[1] / INSTALLER),
            "APPTAINER_MKSQUASHFS_ARGS": "-noI -noD -noF -noX",  # to save time
            "PIP_RETRIES": "0",  # PyTorch's own index cannot be reached here, and is not needed
            "SINGULARITYENV_PYTHONPATH": str(self.rig.root / "site"),
            **DISTURBING,
        }

    def matrix(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work, env=self.env | env)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.rig.run_as_user(command, cwd=self.work, env=self.env | env)

    def build_script(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Build a container with build.sh."""
        return self.run("bash", f"{FILES}/build.sh", *arguments, **(self.building | env))

    def command(self, *options: str) -> list[str]:
        """Return README's command, with the options that "What was run" names and those that save time."""
        text = (PROJECT / "README.md").read_text().partition("## One command")[2]
        page = (PROJECT / "docs" / "explanation" / "what-was-run.md").read_text()
        more = (
            page[page.index("--base-image IMAGE") :].partition("`")[0].replace("IMAGE", str(self.rig.image))
        )
        ops = [word for name, op in OPS.items() for word in ("--ops", f"{name}:{op}")]
        (line,) = (line for line in text.splitlines() if line.startswith("matrix build-container train.sif"))
        _, *words = shlex.split(line)
        # This machine has the programs of Slurm, but no cluster.
        return [*words, *more.split(), *ops, "--executor", "local", *options]

    def container(self, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run README's command."""
        return self.matrix(*self.command(*options), **(self.building | env))

    def killed_in(self, step: str, delay: float) -> str:
        """Run README's command, kill it some seconds after a step has begun, and return its messages."""
        log = self.work / "killed.txt"
        with log.open("w") as sink:
            process = self.start([self.rig.python, "-m", "matrix", *self.command()], sink)
            wait_until(lambda: f"{step}: " in log.read_text() or process.poll() is not None, patience=1500)
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(delay)
            process.kill()
            process.wait()
        return log.read_text()

    def start(self, command: Sequence[str], sink: IO[str], **more: str) -> subprocess.Popen[bytes]:
        """Start a program that builds, in a session of its own."""
        env = {**self.rig.user_environment(), **self.rig.with_project, **self.env, **self.building, **more}
        as_user: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": ()}
        return subprocess.Popen(
            command,
            cwd=self.work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            **(as_user if os.geteuid() == 0 else {}),
        )

    def verify(self, sif: str, **env: str) -> tuple[int, dict[str, Any]]:
        """Verify the container; return the exit code and the JSON document."""
        done = self.matrix("check", sif, "--run", "--format", "json", **env)
        (thing,) = json.loads(done.stdout)["things"]
        return done.returncode, thing

    def audit(self, project: str, *options: str) -> dict[str, Any]:
        """Audit the wheel of a project in the index."""
        (wheel,) = (self.work / "index" / "simple" / project).glob("*.whl")
        done = self.matrix("check", str(wheel), *options, "--format", "json")
        (row,) = json.loads(done.stdout)["things"][0]["wheels"]
        assert isinstance(row, dict)
        return row


@pytest.fixture(scope="module")
def cotainr(rig: Rig) -> Path:
    """Install the real cotainr into an environment of the user."""
    folder = rig.work() / "cotainr"
    uv = find_uv_bin()
    subprocess.run([uv, "venv", "-q", "--python", rig.python, str(folder)], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), COTAINR], check=True
    )
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copy(RIG / "standin_download.py", packages)
    (packages / "standin_download.pth").write_text("import standin_download\n")
    shutil.copy(RIG / INSTALLER, folder)  # the user may not look into root's directories
    return folder / "bin" / "cotainr"


@pytest.fixture(scope="module")
def small(rig: Rig, cotainr: Path) -> User:
    """Create an index with one wheel, and the files of `matrix env` for a lock of the wheel."""
    user = User(rig, rig.work(), cotainr)
    wheel = tiny_wheel(user.work, "tinyext", "1.0+rocm7.2", requires=["packaging"])
    Index(user.work / "index").publish(wheel, {})
    lock = lock_of(built_pick("tinyext", wheel_version="1.0+rocm7.2"))
    lock = with_image(lock, BaseImage(name="base", path=str(rig.runtime)))
    write_lock(lock, user.work / "matrix.lock")
    (user.work / FILES).mkdir()
    hand_over(user.work)
    good(user.matrix("env", "--for", "cotainr", "-o", FILES))
    return user


@pytest.fixture(scope="module")
def readme(rig: Rig, cotainr: Path, hidden_certificates: Path) -> User:
    """Run README's command with the options that it names, killed in two steps, with a stand-in for Apex.

    The user has set variables for a certificate file that containers do not have, and has an older container.
    """
    links, sources = rig.work(), rig.work()
    certificates = dict.fromkeys(CERTIFICATES, str(hidden_certificates))
    user = User(rig, rig.work(), cotainr, {"PIP_FIND_LINKS": str(links), "PIP_RETRIES": "0", **certificates})
    user.env["XDG_CACHE_HOME"] = str(user.work / "cache")
    shutil.copy(rig.torch, links)
    (user.work / "apex.toml").write_text(make_apex(sources))
    (user.work / "matrix.toml").write_text('catalog = ["apex.toml"]\n')
    (user.work / "train.sif").write_text("an older container")
    hand_over(user.work, sources)
    make_triton(user, links)
    for step, delay in KILLED.items():
        killed = user.killed_in(step, delay)
        assert f"{step}: " in killed, killed[-4000:]
        assert (user.work / "train.sif").read_text() == "an older container"
    done = user.container()
    good(done)
    (user.work / "output.txt").write_text(done.stdout + done.stderr)
    return user


def make_triton(user: User, links: Path) -> None:
    """Write the stand-in for the triton that the request needs, which only the resolution names."""
    env = {"XDG_CACHE_HOME": str(user.work / "other-cache")}
    words = user.command()[2:]
    request = words[: words.index("--ops")]
    good(user.matrix("resolve", *request, "-o", "other.lock", **env))
    other = user.work / "other.lock"
    triton = next(pick for pick in read_lock(other).picks if pick.name.startswith("triton"))
    other.unlink()
    shutil.rmtree(user.work / "other-cache")
    wheel_of(links, triton.name, triton.pinned, {"triton.py": (RIG / "standin_triton.py").read_bytes()})


@pytest.fixture(scope="module")
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
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def hand_over(*folders: Path) -> None:
    """Make the user the owner of directories and their content."""
    for folder in folders:
        subprocess.run(["chown", "-R", "--reference", str(folder), str(folder)], check=True)


def test_build_script_builds_container_from_index(small: User) -> None:
    """Packages on PYTHONPATH, such as packaging, are installed as well, and none into ~/.local."""
    good(small.build_script("tiny.sif"))
    program = "import packaging, tinyext; print(tinyext.VERSION, tinyext.__file__, packaging.__file__)"
    inside = small.run("apptainer", "exec", "tiny.sif", "python", "-c", program)
    files = ("tinyext.py", "packaging/__init__.py")
    assert inside.stdout.split() == ["1.0+rocm7.2", *(f"{PACKAGES}{name}" for name in files)], inside.stderr


@pytest.mark.long
def test_changed_lock_makes_container_again(rig: Rig, cotainr: Path) -> None:
    user = User(rig, rig.work(), cotainr)
    command = ["build-container", "small.sif", "--executor", "local"]
    image = BaseImage(name="base", path=str(rig.runtime))
    for names in (["packaging"], ["packaging", "six"]):
        good(user.matrix("resolve", *names, "--backend", "cpu", "--python", "3.11"))
        write_lock(with_image(user.lock, image), user.work / "matrix.lock")
        done = user.matrix(*command, **user.building)
        good(done)
        count = f"{len(names)} distribution{'s' if len(names) > 1 else ''}"
        assert done.stdout.endswith(f"small.sif is ready: {count}, verified.\n")
    inside = user.run(
        "apptainer", "exec", "small.sif", "python", "-c", "import packaging, six; print('both')"
    )
    assert inside.stdout == "both\n", inside.stderr
    done = user.matrix(*command, **user.building)
    assert done.stdout == "Nothing to do: small.sif is up to date, verified.\n"


@pytest.mark.long
def test_container_of_jax_is_made_only_if_its_plugin_loads(rig: Rig, cotainr: Path) -> None:
    """Real wheels of JAX and its plugin for ROCm next to the real HIP runtime of the base image.

    The image lacks libraries that the plugin needs, so its import alone would leave JAX on the CPU. In a
    copy of the image these libraries are STAND-INS, made from what the wheels need: only AMD's packages have
    all of them, such as `librocprofiler-sdk`. No GPU is used.
    """
    user = User(rig, rig.work(), cotainr)
    request = ["jax", "rocm==7.2.*", "--site", "frontier", "--index-strategy", "unsafe-best-match"]
    words = ["build-container", "jax.sif", *request, "--executor", "local", "--base-image"]
    done = user.matrix(*words, str(rig.image), **user.building)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output[-4000:]
    assert "xla_rocm_plugin.so: fails with OSError: librocprofiler" in output
    assert "torch cannot be imported" not in output
    assert not (user.work / "jax.sif").exists()
    assert user.lock.version_of("jax") == user.lock.version_of("jax-rocm7-pjrt")

    good(user.matrix("farm", "fetch", "--wheelhouse", "wheels"))
    for wheel in (user.work / "wheels").glob("jax_rocm7_*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            objects = [name for name in archive.namelist() if name.endswith(".so")]
            archive.extractall(user.work / "objects", objects)
    hand_over(user.work)
    rig.make_libraries(user.work / "libraries", sorted((user.work / "objects").glob("**/*.so")))
    done = user.matrix(*words, str(rig.image_with(user.work / "libraries")), **user.building)
    good(done)
    count = len(user.lock.distributions)
    assert done.stdout.endswith(f"jax.sif is ready: {count} distributions, verified.\n")
    code, answer = user.verify("jax.sif")
    messages = messages_of(answer)
    assert (code, answer["verdict"]) == (4, "not-judged")  # there is no GPU
    assert "jax_plugins/xla_rocm7/xla_rocm_plugin.so: loads" in messages["probe-object"]
    assert "jax_rocm7_plugin/rocm_plugin_extension.so: loads" in messages["probe-object"]
    (reason,) = messages["verify-gpu-not-judged"]
    assert reason.startswith("GPU kernels of jax are not judged: it finds no GPU here: ")
    assert "No AMD GPUs were found" in reason


def test_cause_of_failed_pip_is_last(small: User) -> None:
    definition = small.work / FILES / "env.yml"
    sound = definition.read_text()
    definition.write_text(f"{sound}      - no-such-project==1.0\n")
    done = small.build_script("broken.sif")
    definition.write_text(sound)
    assert done.returncode not in {0, 3}
    end = done.stderr.partition("build.sh: cotainr failed")[2].splitlines()
    assert any("No matching distribution found for no-such-project==1.0" in line for line in end), done.stdout
    assert end[-1] == f"    {definition}:{len(sound.splitlines()) + 1}: no-such-project==1.0", end
    assert "network" not in end
    assert not (small.work / "broken.sif").exists()


@pytest.mark.long
def test_next_build_removes_what_a_killed_one_unpacked(small: User) -> None:
    """SIGKILL ends all processes of the build while the image is unpacked, as in a job that is cancelled."""
    temporary, log = small.rig.work(), small.work / "killed.txt"
    with log.open("w") as sink:
        process = small.start(["bash", f"{FILES}/build.sh", "killed.sif"], sink, TMPDIR=str(temporary))
        unpacked = "matrix-*/*/singularity_sandbox/usr"
        wait_until(lambda: any(temporary.glob(unpacked)) or process.poll() is not None, patience=300)
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
        assert process.wait() == -signal.SIGKILL, log.read_text()
    assert [*temporary.glob(unpacked)]
    good(small.build_script("killed.sif", TMPDIR=str(temporary)))
    assert [*temporary.iterdir()] == []


def test_readme_builds_requested_ops(readme: User) -> None:
    for project, op in OPS.items():
        audit = readme.audit(project, "--gfx90a")
        assert audit["verdict"] == "sound"
        assert set(map(tuple, audit["code_objects"].values())) == {("gfx90a",)}
        (statement,) = (readme.work / "index" / "provenance").glob(f"{project}-*.json")
        findings = results_of(json.loads(statement.read_text()))["findings"]
        assert any(op in finding["message"] for finding in findings if finding["id"] == "object-found")


def test_verify_reports_defects_of_base_image(readme: User) -> None:
    """The base image lacks all distributions of the lock, and the user's pip hides the image's."""
    own = readme.work / "own" / "lib" / "python3.11" / "site-packages"
    (own / "pip-99.dist-info").mkdir(parents=True)
    (own / "pip-99.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 99\n")
    code, answer = readme.verify(str(readme.rig.image), PYTHONUSERBASE=str(readme.work / "own"))
    ids = [finding["id"] for finding in answer["findings"]]
    assert (code, answer["verdict"]) == (1, "does-not-fit")
    assert ids.count("verify-pin-missing") == len(readme.lock.distributions)
    assert "verify-torch-failed" in ids
    assert {"verify-user-site", "verify-user-site-adds"} & set(ids)


def test_container_matches_complete_lock(readme: User, hidden_certificates: Path) -> None:
    """The certificates in the user's variables are used; the requirements of Apex's wheel are locked, too."""
    output = (readme.work / "output.txt").read_text()
    assert str(hidden_certificates) not in output
    assert "to pip" not in output
    assert readme.lock.is_complete
    (wheel,) = (readme.work / "index" / "simple" / "apex").glob("*.whl")
    required = {requirement.name for requirement in requirements_in(wheel, environment_of(readme.lock))}
    assert len(required - {"torch"}) == APEX_REQUIRES
    assert required <= {pick.name for pick in readme.lock.distributions}
    assert "--no-index" in (readme.work / FILES / "env.yml").read_text()
    log = (readme.work / FILES / "build.log").read_text()
    assert f"{len(readme.lock.distributions)} distributions match the lock." in log
    assert "TMPDIR=/opt is not visible in the container" in log
    check_four_wheels(readme)


def test_second_run_does_nothing(readme: User) -> None:
    before = (readme.work / "train.sif").stat()
    started = time.monotonic()
    done = readme.container()
    good(done)
    assert done.stdout == "Nothing to do: train.sif is up to date, verified.\n"
    assert time.monotonic() - started < 20
    assert (readme.work / "train.sif").stat() == before


def test_build_script_replaces_container_only_after_success(readme: User) -> None:
    sif = readme.work / "other.sif"
    good(readme.run("cp", f"{FILES}/env.yml", str(sif)))  # stands in for an older container
    older = sif.read_bytes()
    before = {path.name for path in readme.work.iterdir()}
    failed = readme.build_script("other.sif", **{VARIABLE: "/nowhere"})
    assert failed.returncode not in {0, 3}, failed.stderr
    assert sif.read_bytes() == older
    assert {path.name for path in readme.work.iterdir()} == before


TUTORIAL = """\
set -e
matrix() { {python} -m matrix "$@"; }
module() { :; }
export -f module
srun() { while [[ $1 = -* ]]; do case $1 in --*) shift;; *) shift 2;; esac; done; "$@"; }
sbatch() { command sbatch --wait "$@"; }
"""
"""STAND-INS for the commands of a cluster, before the blocks of the tutorial; `sbatch` is the real one."""
TRAIN = """\
import torch, apex.amp_C, bitsandbytes, deepspeed, flash_attn
print(*(module.__file__ for module in (apex.amp_C, bitsandbytes, deepspeed, flash_attn)), sep="\\n")
"""


@pytest.mark.long
@pytest.mark.timeout(7200)  # by itself it makes the rig and README's container first
def test_steps_of_the_tutorial_run_as_they_stand_there(readme: User) -> None:
    """Its blocks for wheels, files, container and jobs run with the lock of its command, which is README's.

    The jobs run in a real Slurm, whose nodes have the cores, memory and GPU of LUMI's by name only.
    """
    page = (PROJECT / "docs" / "tutorial.md").read_text()
    assert shlex.join(["matrix", *readme.command()]).startswith(
        shlex.join(shlex.split(re.findall(r"(?m)^matrix build-container .*", page)[0]))
    )
    sections = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", page))
    blocks = [
        re.findall(r"(?ms)^```\n(.*?)^```$", sections[title])[0]
        for title in ("Build the wheels", "Build the container")
    ]
    (readme.work / "train.sif").unlink()
    head = TUTORIAL.replace("{python}", str(readme.rig.python))
    environment = readme.building | readme.rig.with_project
    done = readme.run("bash", "-c", head + "".join(blocks), **environment)
    assert done.returncode == 4, (done.stdout + done.stderr)[-4000:]  # checked, without a GPU
    steps = ("0 missing. Cache: ", "Nothing to build.", "distributions match the lock.", "Built ./train.sif")
    places = [done.stdout.find(text) for text in steps]
    assert places == sorted(places), done.stdout
    assert places[0] >= 0, done.stdout
    assert "not-judged" in done.stdout

    lines = re.findall(r"(?m)^(?:\$ )?((?:matrix env|sbatch) .*)", sections["Submit a job"])
    assert [line.split()[0] for line in lines] == ["matrix", "sbatch", "sbatch"]
    (readme.work / "train.py").write_text(TRAIN)
    root = readme.rig.root / "slurm-tutorial"
    root.mkdir()
    with cluster(root, nodes=("rig",), small_g=True) as slurm:
        jobs = readme.run("bash", "-c", head + "\n".join(lines), **slurm.env, **readme.rig.with_project)
    outputs = [path.read_text() for path in sorted(readme.work.glob("slurm-*.out"))]
    assert jobs.returncode == 0, (jobs.stderr, *outputs)
    smoke, train = outputs
    assert "on 1 ranks (gloo, cpu): right sum" in smoke
    assert folders_of(train) == FOLDERS, train


def check_four_wheels(user: User) -> None:
    """Check the container with Apex, DeepSpeed, flash-attention and bitsandbytes."""
    locked = {normalize_name(pick.name): pick.pinned for pick in user.lock.distributions}
    built = {pick.name for pick in user.lock.distributions if pick.origin == "build"}
    assert built == {"apex", "deepspeed", "flash-attn"}
    assert all(locked[name].endswith(LABEL) for name in built)
    code, answer = user.verify("train.sif")
    errors = [finding for finding in answer["findings"] if finding["severity"] == "error"]
    assert (code, answer["verdict"]) == (4, "not-judged"), errors  # there is no GPU
    installed = {normalize_name(name): version for name, version in answer["ran"]["distributions"].items()}
    assert {name: installed[name] for name in locked} == locked
    messages = messages_of(answer)
    assert messages["verify-pins"] == {
        f"{len(locked)} of {len(locked)} distributions have the locked version"
    }
    imports = {f"import {name}: loads" for name in ("apex", "bitsandbytes", "deepspeed", "flash_attn")}
    assert imports <= messages["probe-import"]
    assert {"verify-pip-check", "verify-library", "verify-gpu-not-judged"} <= messages.keys()
    loaded = {
        finding["evidence"]["member"] for finding in answer["findings"] if finding["id"] == "probe-object"
    }
    extensions = {re.sub(r"\.cpython-\S+", "", path.removeprefix(PACKAGES)) for path in loaded}
    assert extensions == {"apex/amp_C", "deepspeed/ops/adam/fused_adam_op"}
    assert f"{PACKAGES}bitsandbytes/libbitsandbytes_cpu.so" in answer["ran"]["libraries"]  # there is no GPU
    assert answer["ran"]["executable"].startswith(PACKAGES.partition("lib/")[0])
    (user.work / "train.py").write_text(TRAIN)
    job = user.run("bash", "-c", JOB, MIOPEN_USER_DB_PATH=str(user.work / "miopen"))
    good(job)
    assert folders_of(job.stdout) == FOLDERS, job.stdout


def folders_of(output: str) -> list[str]:
    """Return the folders of the packages that `TRAIN` printed; DeepSpeed prints log lines, too."""
    return re.findall(rf"(?m)^{PACKAGES}(\w+)/", output)


def messages_of(answer: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the messages of the findings by their id."""
    messages: dict[str, set[str]] = {}
    for finding in answer["findings"]:
        messages.setdefault(finding["id"], set()).add(finding["message"])
    return messages


LARGE = ("jupyterlab", "scikit-learn", "mkdocs-material", "sphinx", "soupsieve<2.9", "pymdown-extensions<13")
"""More than a hundred distributions with their dependencies, all real. Newer releases of the last two
require a newer Python 3.11 than the rig's image has; conda would install the newest."""


@pytest.mark.long
def test_large_environment_is_built_without_any_index(rig: Rig, cotainr: Path) -> None:
    user = User(rig, rig.work(), cotainr)
    good(user.matrix("resolve", *LARGE, "--backend", "cpu", "--python", "3.11"))
    lock = with_image(read_lock(user.work / "matrix.lock"), BaseImage(name="base", path=str(rig.runtime)))
    write_lock(lock, user.work / "matrix.lock")
    count = len(lock.distributions)
    assert lock.is_complete
    assert count > 100
    good(user.matrix("farm", "fetch", "--wheelhouse", "wheels"))
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    offline = ["env", "--for", "cotainr", "--wheelhouse", "wheels", "-o", FILES]
    good(user.run("mkdir", FILES))
    good(user.matrix(*offline, **nowhere))
    done = user.build_script("large.sif", **nowhere, PIP_COMPILE="0")  # to save time
    good(done)
    assert f"{count} distributions match the lock." in done.stdout
    code, answer = user.verify("large.sif")
    messages = {finding["id"]: finding["message"] for finding in answer["findings"]}
    assert code in {0, 4}, answer["findings"]
    assert messages["verify-pins"].startswith(f"{count} of {count} ")
    assert messages["verify-pip-check"] == "All requirements of the installed distributions are met."
