"""``matrix env`` for cotainr and tykky: the conda environment files and the build script."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec.structs import replace
from ruamel.yaml import YAML

from builders.constants import CERTIFICATE_VARIABLES
from builders.index import Index
from matrix.api import write_lock
from matrix.cli import main
from matrix.consumers.shared.container_variables import DISTURBING, LIMITING
from resolver.indexes import File
from resolver.lock import read_lock
from resolver.model import BaseImage
from tests.support.commands import system_programs
from tests.support.locks import locked_pick, with_image
from tests.support.tiny import tiny_wheel
from tests.support.waiting import wait_for_end, wait_until


@cache
def locked(*request: str) -> str:
    """Return the text of the lock for a request, which several tests have."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        assert main(["resolve", *request, "-q", "-o", "matrix.lock"]) == 0
        return Path("matrix.lock").read_text()


@pytest.fixture
def environment(capsys: pytest.CaptureFixture[str]) -> Any:
    packages = ["apex", "deepspeed", "flash-attn", "bitsandbytes", "torchvision"]
    Path("matrix.lock").write_text(locked(*packages, "--date", "2026-03-01", "--python", "3.12"))
    capsys.readouterr()
    assert main(["env", "--for", "cotainr", "-o", "env.yml"]) == 0
    assert "is not in" in capsys.readouterr().err  # a warning: the wheels were not built yet
    return YAML(typ="safe").load(Path("env.yml").read_text())


def pip_lines(environment: Any) -> list[str]:
    (section,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert all(isinstance(line, str) for line in section)  # an unquoted `:all:` would be a map
    return list(section)


def test_python_and_pip_are_dependencies(environment: Any) -> None:
    assert environment["dependencies"][0] == "python=3.12"
    assert "pip=25.*" in environment["dependencies"]  # the pip of the environment installs the lines


def test_libstdcxx_is_not_older_than_that_of_image(environment: Any) -> None:
    assert "libstdcxx-ng>=14" in environment["dependencies"]  # the libstdc++ of Ubuntu 24.04


def test_definition_has_one_option_per_line(environment: Any) -> None:
    for line in pip_lines(environment):
        if line.startswith("-"):
            assert len(line.split()) == 2, line  # pip ignores a requirement after an option
        else:
            assert "--" not in line


def test_indexes_are_ours_and_that_of_torch(environment: Any) -> None:
    urls = [line.split()[1] for line in pip_lines(environment) if line.startswith("--extra-index-url")]
    assert urls == ["file:///mnt/simple", "https://download.pytorch.org/whl/rocm6.4"]


def test_built_wheels_are_pinned_by_label_and_only_binary(environment: Any) -> None:
    lines = pip_lines(environment)
    pins = dict(line.split("==") for line in lines if not line.startswith("-"))
    assert pins["torch"] == "2.9.1+rocm6.4"
    assert pins["torchvision"] == "0.24.1+rocm6.4"
    assert pins["pytorch-triton-rocm"] == "3.5.1"
    for name in ("apex", "deepspeed", "flash-attn"):
        assert pins[name].endswith("+rocm6.4.torch2.9.1.gfx90a")
        assert f"--only-binary {name}" in lines
    assert not any("nvidia" in line for line in lines)


def test_notes_name_base_image_and_bind(environment: Any) -> None:
    del environment
    text = Path("env.yml").read_text()
    assert (
        "`bash build.sh`, on the base image /appl/local/containers/cotainr-baseimages/lumi-multitorch" in text
    )
    assert f"build.sh binds the index {Path('index').resolve()} to /mnt" in text


@pytest.fixture
def cpu_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    Path("matrix.lock").write_text(locked("deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu"))
    capsys.readouterr()
    return tmp_path


COTAINR = """#!/bin/sh
# Fake cotainr: records its arguments and creates a file as container.
if [ -e "$2" ]; then echo "Overwrite $2? [y/N]"; exit 1; fi
{ printf '%s\\n' "$@"; echo "bind=$SINGULARITY_BIND,$APPTAINER_BIND,${SINGULARITY_BINDPATH-unset}"
  echo "tmp=$TMPDIR python=${PYTHONPATH-unset} cache=$PIP_NO_CACHE_DIR"; } > said.txt
env > env.txt
for name in PIP_CERT SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE; do
    eval "file=\\$$name"
    [ -z "$file" ] || cp "$file" "$name.copy"
done
singularity exec "$4" true
if [ -n "$COTAINR_FAILS" ]; then echo half > "$2"; printf "%s\\n" "$COTAINR_SAYS"; exit 7; fi
if [ -n "$COTAINR_SLEEPS" ]; then
    echo half > "$2"; mkdir "$TMPDIR/sandbox"
    sleep 60 & echo $! > sleeping.txt; wait
fi
echo new > "$2"
"""
SINGULARITY = """#!/bin/sh
# Fake singularity: runs commands without a container; python accepts every check.
shift 2
if [ "$1" = python ]; then echo "$@" > python.txt; fi
if [ "$1" = python ] && [ -n "$CHECK_FAILS" ]; then exit 1; fi
if [ "$1" = python ]; then cat > check.py; echo checked; exit 0; fi
if [ "$1" = test ]; then [ -z "$NO_MNT" ]; exit; fi
exec "$@"
"""


def run_script(
    folder: Path, *arguments: str, runtime: str = "singularity", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run build.sh as a user does, with fakes for cotainr and a container runtime on PATH."""
    with start_script(folder, *arguments, runtime=runtime, **variables) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_script(
    folder: Path, *arguments: str, runtime: str = "singularity", **variables: str
) -> subprocess.Popen[str]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, text in (("cotainr", COTAINR), (runtime, SINGULARITY)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    system = system_programs("singularity", "apptainer")
    environment = {"PATH": f"{programs}:{system}", "HOME": str(folder), **variables}
    return subprocess.Popen(
        ["bash", "env/build.sh", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def visible() -> Iterator[Path]:
    """Return an empty directory that is visible in containers; pytest's directories may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def scripted(cpu_lock: Path) -> Path:
    """Write env.yml and build.sh, an index with the wheel, and a base image."""
    wheel = tiny_wheel(cpu_lock / "made", "deepspeed", "0.19.8+cpu.torch2.13.0")
    Index(cpu_lock / "an index").publish(wheel, {"build_key": "x"})
    (cpu_lock / "env").mkdir()
    assert main(["env", "--for", "cotainr", "--index", "an index", "-o", "env"]) == 0
    (cpu_lock / "base image.sif").touch()
    return cpu_lock


def test_script_gives_cotainr_clean_environment_and_index(scripted: Path) -> None:
    (scripted / "old.sif").write_text("old")
    done = run_script(
        scripted,
        "old.sif",
        "-vv",
        MATRIX_BASE_IMAGE=str(scripted / "base image.sif"),
        SINGULARITY_BINDPATH="/var/spool/slurmd",
        PYTHONPATH="/somewhere",
        TMPDIR="/scratch/p",
    )
    assert done.returncode == 0, done.stderr
    bind = f"{scripted / 'an index'}:/mnt:ro"
    command, container, *rest = (scripted / "said.txt").read_text().splitlines()
    assert (command, container.startswith("./old.sif.new-")) == ("build", True)
    assert rest == [
        "--base-image",
        str(scripted / "base image.sif"),
        "--conda-env",
        str(scripted / "env" / "env.yml"),
        "--accept-licenses",
        "-vv",
        f"bind={bind},{bind},unset",
        ANY,
    ]
    assert re.fullmatch(r"tmp=/tmp/matrix-\S+ python=unset cache=1", rest[-1])
    assert "TMPDIR=/scratch/p is not visible in the container" in done.stderr
    assert (scripted / "old.sif").read_text() == "new\n"
    assert sorted(path.name for path in scripted.glob("*.sif*")) == ["base image.sif", "old.sif"]
    assert "checked" in done.stdout
    # Without -s, packages in the user's ~/.local would count as packages of the container.
    assert (scripted / "python.txt").read_text() == "python -s -\n"


def test_failed_build_keeps_existing_container(scripted: Path) -> None:
    (scripted / "old.sif").write_text("old")
    base = str(scripted / "base image.sif")
    done = run_script(scripted, "old.sif", MATRIX_BASE_IMAGE=base, COTAINR_FAILS="1")
    assert done.returncode == 7
    message = "build.sh: cotainr failed (exit code 7, its messages are above); ./old.sif was not changed\n"
    assert message in done.stderr
    assert re.search(r"space for the unpacked image: /tmp has \d\S* free\.\n$", done.stderr)
    done = run_script(scripted, "old.sif", MATRIX_BASE_IMAGE=base, CHECK_FAILS="1")
    assert done.returncode == 1
    assert (scripted / "old.sif").read_text() == "old"
    assert sorted(path.name for path in scripted.glob("*.sif*")) == ["base image.sif", "old.sif"]


NAMED = "deepspeed==0.19.8+cpu.torch2.13.0"
OUTPUTS = {
    "no such wheel": (
        "Pip subprocess error:\nERROR: No matching distribution found for hjson (from deepspeed)",
        [NAMED],
    ),
    "by its file": (
        "ERROR: HTTP error 404 while getting https://x/deepspeed-0.19.8-py3-none-any.whl",
        [NAMED],
    ),
    "named before": (
        "Collecting torch\nCollecting DeepSpeed\n  error: subprocess-exited-with-error",
        [NAMED],
    ),
    "conda": (
        "PackagesNotFoundError: The following packages are not available:\n\n  - torch==2.13.0",
        ["torch=="],
    ),
    "a conflict": ("ERROR: Cannot install deepspeed and torch because of conflicts", [NAMED, "torch=="]),
    "cotainr's colours": (
        "\x1b[2K⣯ Sandbox/CondaInstall.err:-: \x1b[38;5;1mERROR: No distribution for one-more==1\x1b[0m",
        ["one-more==1"],
    ),
    "not of a package": ("Collecting torch\nwarning: slow\nno space", []),
    "names none": ("ERROR: Could not connect with python and pip", []),
}
"""What pip and conda print in cotainr, and the requirements that are to blame."""


@pytest.mark.parametrize(("output", "blamed"), OUTPUTS.values(), ids=OUTPUTS)
def test_lines_of_packages_that_failed_are_last(scripted: Path, output: str, blamed: list[str]) -> None:
    base = str(scripted / "base image.sif")
    environment = scripted / "env" / "env.yml"
    environment.write_text(f"{environment.read_text()}      - one-more==1\n")
    done = run_script(scripted, MATRIX_BASE_IMAGE=base, COTAINR_FAILS="1", COTAINR_SAYS=output)
    lines = environment.read_text().splitlines()
    shown = [line.strip() for line in done.stderr.splitlines() if str(environment) in line]
    expected = [(n, line) for want in blamed for n, line in enumerate(lines, 1) if f"- {want}" in line]
    assert shown == [f"{environment}:{n}: {line.strip().removeprefix('- ')}" for n, line in expected]
    assert len(expected) == len(blamed)
    if blamed:
        assert done.stderr.splitlines()[-1].strip() == shown[-1]


def start_sleeping(folder: Path, temporary: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a build that does not end; return also the process id of the program that cotainr started."""
    temporary.mkdir(exist_ok=True)
    image = str(folder / "base image.sif")
    process = start_script(
        folder, "old.sif", MATRIX_BASE_IMAGE=image, TMPDIR=str(temporary), COTAINR_SLEEPS="1"
    )
    file = folder / "sleeping.txt"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), process)
    return process, int(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_build_leaves_nothing(scripted: Path, visible: Path, number: int) -> None:
    (scripted / "old.sif").write_text("old")
    before = signal.signal(number, signal.SIG_DFL)  # bash traps no signal that it inherits as ignored
    try:
        process, child = start_sleeping(scripted, visible)
    finally:
        signal.signal(number, before)
    with process:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, "interrupted; ./old.sif was not changed" in err) == (130, True)
    wait_for_end(child)
    assert list(visible.iterdir()) == []
    assert (scripted / "old.sif").read_text() == "old"
    assert sorted(path.name for path in scripted.glob("*.sif*")) == ["base image.sif", "old.sif"]


def test_killed_build_is_reported_and_repeated(scripted: Path, visible: Path) -> None:
    process, child = start_sleeping(scripted, visible)
    with process:
        process.kill()
        os.killpg(os.getpgid(child), signal.SIGKILL)
    (left,) = scripted.glob("old.sif*")
    assert left.suffix != ".sif"
    (unpacked,) = visible.iterdir()
    other = unpacked.with_name(unpacked.name.replace(f"-{process.pid}-", f"-{os.getpid()}-"))  # it runs
    other.mkdir()
    assert (unpacked / "sandbox").is_dir()
    image = str(scripted / "base image.sif")
    done = run_script(scripted, "old.sif", MATRIX_BASE_IMAGE=image, TMPDIR=str(visible))
    assert done.returncode == 0, done.stderr
    assert [*visible.iterdir()] == [other]
    assert f"./{left.name} belongs to a build that still runs or was killed" in done.stderr
    assert (scripted / "old.sif").read_text() == "new\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--verbose"],
            "name the container before the options of cotainr: `bash build.sh CONTAINER.sif --verb",
        ),
        (["env"], "./env is a directory; name a file"),
        (["no-such/x.sif"], "./no-such does not exist, or you may not write to it"),
        (["base image.sif"], "the container would replace its base image"),
    ],
)
def test_bad_container_name_is_rejected(scripted: Path, arguments: list[str], message: str) -> None:
    done = run_script(scripted, *arguments, MATRIX_BASE_IMAGE=str(scripted / "base image.sif"))
    assert (done.returncode, message in done.stderr) == (3, True), done.stderr
    assert not (scripted / "said.txt").exists()
    assert (scripted / "base image.sif").read_text() == ""


@pytest.mark.parametrize("variable", ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates_reach_container_as_copies(scripted: Path, variable: str) -> None:
    base = str(scripted / "base image.sif")
    hidden = os.__file__  # any file that is neither in /tmp nor in /var/tmp
    assert run_script(scripted, **{"MATRIX_BASE_IMAGE": base, variable: hidden}).returncode == 0
    lines = (scripted / "env.txt").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{variable}="))
    assert re.fullmatch(rf"{variable}=/tmp/matrix-[^/]+/{variable}\.pem", line)
    assert (scripted / f"{variable}.copy").read_bytes() == Path(hidden).read_bytes()


def test_variables_that_break_a_build_are_unset(scripted: Path) -> None:
    changed = dict.fromkeys((*DISTURBING, *CERTIFICATE_VARIABLES, *LIMITING, "TMP"), os.__file__)
    base = str(scripted / "base image.sif")
    done = run_script(scripted, MATRIX_BASE_IMAGE=base, **changed)
    assert done.returncode == 0
    lines = (scripted / "env.txt").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    bound = {"SINGULARITY_BIND", "APPTAINER_BIND"}
    assert {name for name in changed if name in env} - bound == {*CERTIFICATE_VARIABLES, *LIMITING}
    for name in CERTIFICATE_VARIABLES:
        assert Path(env[name]).name == f"{name}.pem"
    for name in LIMITING:
        assert f"build.sh: {name} is kept, and changes what pip installs" in done.stderr


def test_missing_cotainr_is_reported(scripted: Path) -> None:
    programs = scripted / "programs"
    programs.mkdir()
    (programs / "singularity").write_text("")
    (programs / "singularity").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{system_programs('singularity', 'apptainer')}",
        "MATRIX_BASE_IMAGE": str(scripted / "base image.sif"),
    }
    done = subprocess.run(
        ["bash", "env/build.sh"], cwd=scripted, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "build.sh: cotainr is not on PATH\n")


def test_apptainer_is_linked_as_singularity(scripted: Path) -> None:
    base = str(scripted / "base image.sif")
    done = run_script(scripted, runtime="apptainer", MATRIX_BASE_IMAGE=base, TMPDIR=str(scripted))
    assert done.returncode == 0, done.stderr
    assert "checked" in done.stdout
    assert "not found" not in done.stderr
    assert not list(scripted.glob("tmp.*"))
    (scripted / "programs" / "apptainer").unlink()
    done = run_script(scripted, runtime="podman", MATRIX_BASE_IMAGE=base)
    assert done.returncode == 3
    assert "neither SingularityCE nor Apptainer is on PATH" in done.stderr


def test_container_check_compares_versions(scripted: Path) -> None:
    image = str(scripted / "base image.sif")
    assert run_script(scripted, MATRIX_BASE_IMAGE=image).returncode == 0
    check = scripted / "check.py"
    wrong = subprocess.run(
        [sys.executable, "-I", "-S", str(check)], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert "deepspeed: nothing instead of 0.19.8+cpu.torch2.13.0" in wrong.stderr
    site = scripted / "site"
    for name, version in (("deepspeed", "0.19.8+cpu.torch2.13.0"), ("torch", "2.13.0+cpu")):
        with zipfile.ZipFile(tiny_wheel(scripted / "made", name, version)) as archive:
            archive.extractall(site)
    command = [sys.executable, "-S", str(check)]
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    right = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (right.returncode, right.stderr) == (0, "")
    with zipfile.ZipFile(tiny_wheel(scripted / "made", "nvidia-cublas-cu12", "12.8")) as archive:
        archive.extractall(site)
    cuda = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "nvidia-cublas-cu12 12.8 is for CUDA" in cuda.stderr


def test_script_reports_missing_parts_before_build(scripted: Path) -> None:
    image = str(scripted / "base image.sif")
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "the lock has no base image; set MATRIX_BASE_IMAGE=PATH"),
        ({"MATRIX_BASE_IMAGE": "/no/such.sif"}, "there is no base image /no/such.sif"),
        ({"MATRIX_BASE_IMAGE": image, "MATRIX_INDEX": "/no/index"}, "there is no index at /no/index"),
        ({"MATRIX_BASE_IMAGE": image, "NO_MNT": "1"}, "has no /mnt"),
    ]
    for variables, output in cases:
        done = run_script(scripted, **variables)
        assert done.returncode == 3
        assert output in done.stderr
    (wheel,) = (scripted / "an index" / "simple" / "deepspeed").glob("*.whl")
    wheel.unlink()
    done = run_script(scripted, MATRIX_BASE_IMAGE=image)
    assert (done.returncode, "has no deepspeed 0.19.8+cpu.torch2.13.0" in done.stderr) == (3, True)
    assert not (scripted / "said.txt").exists()  # cotainr was never started


@pytest.mark.slow
def test_script_checks_digest_of_base_image(scripted: Path) -> None:
    image = scripted / "base image.sif"
    lock = read_lock(Path("matrix.lock"))
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    locked = BaseImage(name="base", path=str(image), digest=f"sha256:{digest}")
    write_lock(with_image(lock, locked))
    assert main(["env", "--for", "cotainr", "--index", "an index", "-o", "env"]) == 0
    assert run_script(scripted).returncode == 0
    image.write_text("another")
    done = run_script(scripted)
    assert done.returncode == 3
    assert f"the lock was resolved for {digest}" in done.stderr


def test_served_index_is_not_bound(scripted: Path) -> None:
    url = "https://wheels.example/simple"
    assert main(["env", "--for", "cotainr", "--index-url", url, "-o", "env"]) == 0
    assert f"- --extra-index-url {url}" in (scripted / "env" / "env.yml").read_text()
    done = run_script(scripted, MATRIX_BASE_IMAGE=str(scripted / "base image.sif"))
    assert done.returncode == 0, done.stderr
    assert "bind=,,unset" in (scripted / "said.txt").read_text()


def test_tykky_gets_real_path_of_index(cpu_lock: Path) -> None:
    (cpu_lock / "real").mkdir()
    (cpu_lock / "link").symlink_to("real")
    assert main(["env", "--for", "tykky", "--index", "link", "-o", "env.yml"]) == 0
    environment = YAML(typ="safe").load(Path("env.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip=25.*", "libstdcxx-ng", "gxx"]
    lines = [line for line in Path("req.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == f"--extra-index-url file://{cpu_lock}/real/simple"
    assert lines[-2:] == ["torch==2.13.0+cpu", "deepspeed==0.19.8+cpu.torch2.13.0"]


def test_lower_bound_of_libstdcxx_comes_from_lock(cpu_lock: Path) -> None:
    lock = read_lock(Path("matrix.lock"))
    lock = with_image(lock, BaseImage(name="base", libstdcxx="13.2"))
    write_lock(lock, cpu_lock / "other.lock")
    assert main(["env", "--for", "cotainr", "--lock", "other.lock", "-o", "other.yml"]) == 0
    assert "libstdcxx-ng>=13.2" in YAML(typ="safe").load(Path("other.yml").read_text())["dependencies"]


def test_unknown_libstdcxx_of_image_is_reported(cpu_lock: Path) -> None:
    lock = with_image(read_lock(Path("matrix.lock")), BaseImage(name="base"))
    write_lock(lock, cpu_lock / "other.lock")
    assert main(["env", "--for", "cotainr", "--lock", "other.lock", "-o", "other.yml"]) == 0
    assert "# The libstdc++ of this base image is unknown" in Path("other.yml").read_text()


def test_files_that_container_cannot_see_are_named(
    cpu_lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = read_lock(Path("matrix.lock"))
    urls = {
        "here": "file:///srv/links/here-1.0-py3-none-any.whl",
        "tmp": "file:///tmp/tmp-1.0-py3-none-any.whl",
    }
    picks = [
        locked_pick(name, "1.0", File(f"{name}-1.0-py3-none-any.whl", url)) for name, url in urls.items()
    ]
    write_lock(replace(lock, picks=(*lock.picks, *picks)), cpu_lock / "other.lock")
    assert main(["env", "--for", "cotainr", "--lock", "other.lock", "-o", "other.yml"]) == 0
    error = capsys.readouterr().err
    assert "cannot see the files of here==1.0, which are on this machine" in error
    assert "--wheelhouse wheels" in error
