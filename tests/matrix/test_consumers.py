"""``matrix env`` for pip, uv, EasyBuild, virtual environments and definition files, and ``-o``."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from builders.index import Index
from builders.machine.host import glibc_version
from matrix.api import write_lock
from matrix.cli import main
from matrix.consumers import consumer_names, load_consumer
from matrix.consumers.shared.installation import Installation
from matrix.consumers.shared.shell import fill
from resolver.errors import UsageError
from resolver.indexes import File
from resolver.lock import read_lock
from resolver.model import BaseImage
from resolver.requirements import parse_requirement
from tests.support.locks import locked_pick, with_image, with_kept
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
GOLDEN = ["apex", "deepspeed", "flash-attn", "bitsandbytes", "torchvision", "torchaudio"]
LABEL = "+rocm6.4.torch2.9.1.gfx90a"
TORCH_INDEX = "https://download.pytorch.org/whl/rocm6.4"
LAIF = "lumi-multitorch-torch-u24r64f21m43t29-20260319_153422.sif"


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two locks for LUMI: six packages on a bare image, and two packages on an image with torch."""
    folder = tmp_path_factory.mktemp("locks")
    arguments = [*GOLDEN, "--date", "2026-03-01", "--python", "3.12"]
    assert main(["resolve", *arguments, "-o", str(folder / "bare.lock"), "-q"]) == 0
    arguments = ["xformers", "deepspeed", "--date", "2026-06-01", "--python", "3.12", "--base-image", LAIF]
    assert (
        main(["resolve", *arguments, "--keep-installed", "image", "-o", str(folder / "kept.lock"), "-q"]) == 0
    )
    return folder


@pytest.fixture
def work(resolved: Path, tmp_path: Path) -> Path:
    """Return a directory with both locks."""
    for lock in ("bare.lock", "kept.lock"):
        (tmp_path / lock).write_bytes((resolved / lock).read_bytes())
    return tmp_path


def env(consumer: str, *more: str, lock: str = "bare.lock") -> int:
    return main(["env", "--for", consumer, "--lock", lock, *more])


def content(path: str) -> list[str]:
    return [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]


def pins(lines: list[str]) -> dict[str, str]:
    requirements = [Requirement(line) for line in lines if not line.startswith("-")]
    for requirement in requirements:
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in requirements}


def test_pip_gets_complete_requirements_and_constraints(work: Path) -> None:
    assert env("pip", "-o", "requirements.txt") == 0
    lines = content("requirements.txt")
    assert lines[:2] == [
        f"--extra-index-url file://{work}/index/simple",
        f"--extra-index-url {TORCH_INDEX}",
    ]
    pinned = pins(lines)
    assert pinned["torch"] == "2.9.1+rocm6.4"
    assert (pinned["torchvision"], pinned["torchaudio"]) == ("0.24.1+rocm6.4", "2.9.1+rocm6.4")
    assert pinned["pytorch-triton-rocm"] == "3.5.1"
    assert [pinned[name][-len(LABEL) :] for name in ("apex", "deepspeed", "flash-attn")] == [LABEL] * 3
    only = {line.split()[1] for line in lines if line.startswith("--only-binary")}
    assert only == {"apex", "bitsandbytes", "deepspeed", "flash-attn"}
    assert not any("nvidia" in line for line in lines)
    assert pins(content("constraints.txt")) == pinned


def test_preinstalled_packages_become_constraints_only(work: Path) -> None:
    assert env("pip", "-o", str(work), lock="kept.lock") == 0
    required, limits = pins(content("requirements.txt")), pins(content("constraints.txt"))
    assert set(required) == {"deepspeed", "xformers"}  # triton belongs to the torch of the image
    assert limits["torch"] == "2.9.1+rocm6.4"
    assert limits["torchvision"] == "0.24.1+rocm6.4"
    assert required.items() <= limits.items()
    assert TORCH_INDEX not in Path("requirements.txt").read_text()


def test_uv_binds_each_name_to_its_index(work: Path) -> None:
    assert env("uv", "-o", "pyproject.toml") == 0
    data = tomllib.loads(Path("pyproject.toml").read_text())
    assert data["project"]["requires-python"] == "==3.12.*"
    tool = data["tool"]["uv"]
    assert all(table["explicit"] is True for table in tool["index"])
    assert {table["name"]: table["url"] for table in tool["index"]} == {
        "matrix": f"file://{work}/index/simple",
        "rocm6.4": TORCH_INDEX,
    }
    sources = {name: table["index"] for name, table in tool["sources"].items()}
    assert (sources["apex"], sources["torch"]) == ("matrix", "rocm6.4")
    assert "bitsandbytes" not in sources  # which is on pip's own index
    assert pins(tool["override-dependencies"]) == pins(data["project"]["dependencies"])
    assert {"apex", "deepspeed", "flash-attn"} <= set(tool["no-build-package"])


@pytest.mark.parametrize("consumer", ["venv", "easybuild"])
def test_lock_that_replaces_torch_of_image_is_rejected(work: Path, capsys: Capture, consumer: str) -> None:
    assert env(consumer, "-o", str(work)) == 2
    output = capsys.readouterr().err
    assert "The lock installs torch==2.9.1+rocm6.4, and keeps no torch of the base image" in output
    assert "--keep-installed image" in output
    assert sorted(path.name for path in work.iterdir()) == ["bare.lock", "kept.lock"]


@pytest.mark.parametrize("consumer", ["venv", "easybuild", "apptainer"])
def test_cpu_lock_without_image_is_rejected(work: Path, capsys: Capture, consumer: str) -> None:
    requested = ["torch==2.13.0", "--backend", "cpu", "--python", "3.12", "-o", "cpu.lock", "-q"]
    assert main(["resolve", *requested]) == 0
    capsys.readouterr()
    assert env(consumer, "-o", str(work), lock="cpu.lock") == 2
    output = capsys.readouterr().err
    assert "The lock has no base image" in output
    assert "--base-image" not in output  # which the CPU backend does not have
    assert "replace" not in output


@pytest.mark.parametrize("consumer", ["pip", "uv", "tykky"])
@pytest.mark.parametrize(
    ("windows", "machine"), [(True, "lumi-g has glibc 2.38"), (False, "this machine has")]
)
def test_consumer_on_host_reports_wheel_for_newer_glibc(
    work: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    consumer: str,
    machine: str,
    *,
    windows: bool,
) -> None:
    """The machine is the site if its glibc is known, else this machine."""
    if not windows:
        monkeypatch.setattr("resolver.facts.catalog.Catalog.window_on", lambda *_: None)
    wheel = tiny_wheel(work / "made", "apex", f"1.9.0{LABEL}")
    tags = "cp312-cp312-manylinux_2_99_x86_64"
    wheel = wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", tags)))
    Index(work / "index").publish(wheel, {})
    assert env(consumer, "-o", str(work)) == 0
    output = capsys.readouterr().err
    assert f"The wheel of apex 1.9.0{LABEL} requires glibc 2.99" in output
    assert machine in output
    assert windows or f"this machine has glibc {glibc_version()}" in output
    assert env("cotainr", "-o", str(work)) == 0
    assert "requires glibc" not in capsys.readouterr().err


def test_pip_reports_wheel_for_missing_python(
    work: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tiny_wheel(work / "made", "apex", f"1.9.0{LABEL}")
    Index(work / "index").publish(
        wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", "cp312-cp312-linux_x86_64"))), {}
    )
    monkeypatch.setattr("builders.machine.host.running_python", lambda: "3.6")
    monkeypatch.setenv("PATH", str(work / "bin"))
    assert env("pip", "-o", str(work)) == 0
    output = capsys.readouterr().err
    assert f"The wheel of apex 1.9.0{LABEL} requires Python 3.12, and no python3.12 is on PATH" in output
    (work / "bin").mkdir()
    (work / "bin" / "python3.12").touch(mode=0o755)
    assert env("pip", "-o", str(work)) == 0
    assert "requires Python" not in capsys.readouterr().err


def test_consumer_modules_register_themselves() -> None:
    names = consumer_names()
    assert {"cotainr", "pip", "tykky", "uv"} <= {*names}
    assert all(load_consumer(name).file for name in names)


def test_uv_rejects_preinstalled_packages(work: Path, capsys: Capture) -> None:
    assert env("uv", "-o", str(work), lock="kept.lock") == 2
    assert "--for venv" in capsys.readouterr().err


@pytest.mark.parametrize("consumer", ["cotainr", "tykky"])
def test_conda_consumers_reject_preinstalled_packages(work: Path, capsys: Capture, consumer: str) -> None:
    """Without the image's torch, pip would install PyPI's, for CUDA."""
    (work / "out").mkdir()
    assert env(consumer, "-o", "out", lock="kept.lock") == 2
    output = capsys.readouterr().err
    assert re.search(r"The lock keeps [^\n]*torch==2\.9\.1\+rocm6\.4", output)
    assert "--for venv" in output
    assert list((work / "out").iterdir()) == []


def test_uv_rejects_variables_in_index_url(work: Path, capsys: Capture) -> None:
    assert env("uv", "-o", str(work), "--index-url", "${PLACE}/simple") == 2
    assert "${PLACE}/simple" in capsys.readouterr().err


def test_easybuild_lines_stop_at_failing_pip(work: Path) -> None:
    assert env("easybuild", "-o", "lines.py", lock="kept.lock") == 0
    names: dict[str, object] = {"local_singularity_bind": "/pfs", "local_sif": "image.sif"}
    exec(compile(Path("lines.py").read_text(), "lines.py", "exec"), names)
    requirements = str(names["local_pip_requirements"]).split("\n")
    assert set(pins([line for line in requirements if line])) == {"deepspeed", "xformers"}
    constraints = str(names["local_pip_constraints"]).split("\n")
    assert "torch==2.9.1+rocm6.4" in constraints
    assert not any(line.startswith("deepspeed==") for line in constraints)
    steps = names["local_matrix_install"]
    assert isinstance(steps, list)
    assert steps[0].endswith(f"{names['local_pip_requirements']}EOF")
    assert f"--bind /pfs --bind {work}/index:{work}/index:ro " in steps[-1]
    assert steps[-1].endswith("|| exit 1' || exit 1")
    assert subprocess.run(["bash", "-n", "-c", steps[-1] % {"installdir": "/i"}], check=False).returncode == 0


def test_easybuild_rejects_path_with_special_characters(work: Path, capsys: Capture) -> None:
    assert env("easybuild", "--index", "100%", "-o", "lines.py", lock="kept.lock") == 2
    assert "100%" in capsys.readouterr().err
    assert not (work / "lines.py").exists()


def test_venv_has_requirements_and_three_scripts(work: Path) -> None:
    assert env("venv", "-o", str(work), lock="kept.lock") == 0
    lines = content("requirements.txt")
    assert lines[0] == "--extra-index-url file:///mnt/simple"
    assert set(pins(lines)) == {"deepspeed", "xformers"}
    assert pins(content("constraints.txt"))["torch"] == "2.9.1+rocm6.4"
    for name in ("create_venv.sh", "create_squashfs.sh", "run.sh"):
        assert Path(name).stat().st_mode & 0o111, name
    make, run = Path("create_venv.sh").read_text(), Path("run.sh").read_text()
    assert f"/appl/local/laifs/containers/lumi-multitorch-u24r64f21m43t29-20260319_153422/{LAIF}" in make
    assert "need xformers 0.0.33.post2+rocm6.4.torch2.9.1.gfx90a" in make
    assert "SINGULARITYENV_PYTHONNOUSERSITE=1" in run
    assert "NCCL_SOCKET_IFNAME" in run


def _environment(script: str, **env: str) -> dict[str, str]:
    """Return the variables after a POSIX shell has read a script."""
    command = ["sh", "-euc", f"{script}\nenv"]
    done = subprocess.run(
        command, env=env | {"PATH": "/bin:/usr/bin"}, capture_output=True, text=True, check=True
    )
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


@pytest.mark.parametrize("consumer", ["cotainr", "tykky"])
def test_job_scripts_get_variables_of_site(consumer: str, work: Path) -> None:
    assert env(consumer, "-o", str(work)) == 0
    script = Path("environment.sh").read_text()
    variables = _environment(script, USER=work.name, SLURM_NODEID="7", NCCL_NET_GDR_LEVEL="PHB")
    assert variables["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1,hsn2,hsn3"
    assert variables["NCCL_NET_GDR_LEVEL"] == "PHB"  # the user's own value stays
    assert variables["MIOPEN_USER_DB_PATH"] == variables["MIOPEN_CUSTOM_CACHE_DIR"]
    assert variables["MIOPEN_USER_DB_PATH"] == f"/tmp/{work.name}-miopen-cache-7"
    Path(variables["MIOPEN_USER_DB_PATH"]).rmdir()


def test_job_scripts_get_variables_of_built_distributions(work: Path) -> None:
    request = ["flash-attn[triton]", "--site", "lumi-g", "--date", "2026-06-01", "--offline", "-q"]
    assert main(["resolve", *request]) == 0
    assert env("cotainr", "-o", str(work), lock="matrix.lock") == 0
    variables = _environment(Path("environment.sh").read_text(), USER=work.name)
    Path(variables["MIOPEN_USER_DB_PATH"]).rmdir()
    assert variables["FLASH_ATTENTION_TRITON_AMD_ENABLE"] == "TRUE"  # without it, the import fails


def test_variable_that_must_not_be_set_is_unset(work: Path) -> None:
    lock = read_lock(work / "bare.lock")
    picks = tuple(replace(pick, version="7.0.2") if pick.name == "rocm" else pick for pick in lock.picks)
    write_lock(replace(lock, picks=picks), work / "newer.lock")
    assert env("cotainr", "-o", str(work), lock="newer.lock") == 0
    script = Path("environment.sh").read_text()
    variables = _environment(script, USER=work.name, NCCL_NET_GDR_LEVEL="PHB")
    Path(variables["MIOPEN_USER_DB_PATH"]).rmdir()
    assert "NCCL_NET_GDR_LEVEL" not in variables
    assert variables["FI_MR_CACHE_MONITOR"] == "userfaultfd"


def test_definition_copies_wheels_and_removes_them(work: Path) -> None:
    assert env("apptainer", "-o", "container.def") == 0
    lines = Path("container.def").read_text().splitlines()
    assert "Bootstrap: localimage" in lines
    assert any(line.startswith("From: /appl/local/containers/cotainr-baseimages/") for line in lines)
    copied = lines[lines.index("%files") + 1 : lines.index("%post") - 1]
    assert [line.split()[0] for line in copied] == [
        f"{work}/index/simple/{name}" for name in ("apex", "deepspeed", "flash-attn")
    ]
    assert any("NCCL_SOCKET_IFNAME" in line for line in lines[lines.index("%environment") :])
    post = lines[lines.index("%post") + 1 : lines.index("%environment")]
    assert "rm -rf /opt/matrix-files" in post
    assert "--extra-index-url file:///opt/matrix-files/simple" in post
    (work / "post.sh").write_text("\n".join(post))
    assert subprocess.run(["sh", "-n", "post.sh"], check=False).returncode == 0


def test_definition_with_wheelhouse_downloads_nothing(work: Path, capsys: Capture) -> None:
    assert env("apptainer", "--wheelhouse", "wheels", "-o", "container.def") == 1
    assert "no wheels in wheels" in capsys.readouterr().err
    tiny_wheel(work / "wheels", "apex", "1.9.0")
    assert env("apptainer", "--wheelhouse", "wheels", "-o", "container.def") == 0
    text = Path("container.def").read_text()
    assert "--no-index\n--find-links /opt/matrix-files/wheels\n--only-binary" in text
    assert "--extra-index-url" not in text
    assert f"    {work}/wheels /opt/matrix-files/wheels\n" in text


def test_definition_replaces_the_libraries_that_the_recipe_of_the_site_replaces(work: Path) -> None:
    """RCCL of torch's wheel crashed in LUMI's tests: the recipe copies the image's over it."""
    lock = read_lock(work / "bare.lock")
    torch = "2.7.1+rocm6.2.4"
    picks = tuple(
        replace(pick, version=torch, wheel_version=torch) if pick.name == "torch" else pick
        for pick in lock.picks
    )
    write_lock(replace(lock, picks=picks), work / "old.lock")
    assert env("apptainer", "-o", "container.def", lock="old.lock") == 0
    text = Path("container.def").read_text()
    program = text.partition("<<'REPLACE'\n")[2].partition("\nREPLACE\n")[0]
    assert '"torch/lib/librccl.so": "/opt/rocm/lib/librccl.so"' in program
    assert text.index("pip install") < text.index("<<'REPLACE'") < text.index("<<'CHECK'")
    assert env("apptainer", "-o", "other.def") == 0
    assert "REPLACE" not in Path("other.def").read_text()

    Path("image").mkdir()
    Path("image/librccl.so").write_text("of the image")
    packages = work / "site"
    info = packages / "torch-1.dist-info"
    for path in (packages / "torch" / "lib", info):
        path.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1\n")
    (info / "RECORD").write_text("torch/__init__.py,,\ntorch/lib/librccl.so,,\ntorch-1.dist-info/RECORD,,\n")
    (packages / "torch" / "lib" / "librccl.so").write_text("of the wheel")
    program = program.replace("/opt/rocm/lib", str(work / "image"))
    run = [sys.executable, "-c", program]
    variables = {**os.environ, "PYTHONPATH": str(packages)}
    subprocess.run(run, env=variables, check=True, capture_output=True)
    assert (packages / "torch/lib/librccl.so").read_text() == "of the image"
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"of the image").digest()).decode().rstrip("=")
    record = (info / "RECORD").read_text().splitlines()
    assert record == [
        "torch/__init__.py,,",
        f"torch/lib/librccl.so,sha256={digest},12",
        "torch-1.dist-info/RECORD,,",
    ]
    Path("image/librccl.so").unlink()
    failed = subprocess.run(run, env=variables, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "The image lacks" in failed.stderr


def test_definition_says_how_to_check_base_image(work: Path) -> None:
    image = BaseImage(name="base", path="/images/base.sif", digest="sha256:12ab")
    write_lock(with_image(read_lock(work / "bare.lock"), image), work / "digest.lock")
    assert env("apptainer", "-o", "container.def", lock="digest.lock") == 0
    assert (
        "# Check the base image first: `echo '12ab  /images/base.sif' | sha256sum -c`\n"
        in Path("container.def").read_text()
    )


def test_definition_rejects_path_with_spaces(work: Path, capsys: Capture) -> None:
    assert env("apptainer", "--index", "an index", "-o", "container.def") == 2
    assert "an index/simple/apex" in capsys.readouterr().err
    assert not (work / "container.def").exists()


def test_definition_of_registry_image_uses_registry(work: Path) -> None:
    lock = with_image(read_lock(work / "bare.lock"), BaseImage(name="amd", path="docker://rocm/dev:6.4"))
    write_lock(lock, work / "docker.lock")
    assert env("apptainer", "-o", "container.def", lock="docker.lock") == 0
    assert "Bootstrap: docker\nFrom: rocm/dev:6.4\n" in Path("container.def").read_text()


@pytest.mark.parametrize("consumer", ["cotainr", "venv"])
def test_scripts_are_valid_bash(work: Path, consumer: str) -> None:
    folder = work / "it's here"
    folder.mkdir()
    lock = "bare.lock" if consumer == "cotainr" else "kept.lock"
    assert env(consumer, "-o", str(folder), "--index", "in dex'", lock=lock) == 0
    scripts = list(folder.glob("*.sh"))
    assert scripts
    for path in scripts:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert not re.search(r"@[A-Z_]+@", path.read_text())


def test_script_uses_name_of_main_file(work: Path) -> None:
    (work / "deep").mkdir()
    assert env("cotainr", "-o", "deep/my env.yml") == 0
    assert YAML(typ="safe").load((work / "deep" / "my env.yml").read_text())["name"] == "matrix"
    assert "environment=$here/'my env.yml'" in (work / "deep" / "build.sh").read_text()


def test_stdout_gets_main_file_and_others_are_listed(work: Path, capsys: Capture) -> None:
    del work
    assert env("venv", lock="kept.lock") == 0
    output = capsys.readouterr()
    assert pins([line for line in output.out.splitlines() if line[:1] != "#"])["xformers"]
    assert "constraints.txt, create_venv.sh, create_squashfs.sh, run.sh. To write all files: -o" in output.err


def test_file_of_user_is_not_replaced(work: Path, capsys: Capture) -> None:
    (work / "build.sh").write_text("make\n")
    assert env("cotainr", "-o", "env.yml") == 2
    assert "build.sh exists and was not written by `matrix env`" in capsys.readouterr().err
    assert not (work / "env.yml").exists()
    assert (work / "build.sh").read_text() == "make\n"
    (work / "build.sh").unlink()
    (work / "env.yml").write_text("old\n")
    assert env("cotainr", "-o", ".") == 2  # with a directory, the user does not name the main file
    assert env("cotainr", "-o", "env.yml") == 0  # here the user names it
    assert env("cotainr", "-o", ".") == 0  # files that `matrix env` wrote may be replaced
    assert "name: matrix" in (work / "env.yml").read_text()


def test_device_gets_main_file_only(work: Path) -> None:
    assert env("cotainr", "-o", "/dev/null") == 0
    assert not (work / "build.sh").exists()
    assert not Path("/dev/build.sh").exists()


def test_same_lock_gives_same_bytes(work: Path) -> None:
    for consumer in ("cotainr", "tykky", "pip", "uv", "apptainer"):
        texts = []
        for folder in ("one", "two"):
            (work / folder / consumer).mkdir(parents=True)
            assert env(consumer, "-o", f"{folder}/{consumer}") == 0
            texts.append({path.name: path.read_bytes() for path in (work / folder / consumer).iterdir()})
        assert texts[0] == texts[1]
        assert load_consumer(consumer).file in texts[0]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("pip --wheelhouse x --index-url https://x/simple", "cannot be combined"),
        ("pip --index-url /scratch/index", "is not a URL"),
        ("cotainr --index-url https://x/$(reboot)", "is not a URL"),
    ],
)
def test_conflicting_options_are_errors(work: Path, capsys: Capture, arguments: str, output: str) -> None:
    assert env(*arguments.split(), "-o", "out") == 2
    assert output in capsys.readouterr().err
    assert not (work / "out").exists()


def test_index_url_may_contain_variables_for_pip(work: Path) -> None:
    del work
    for url in ("http://127.0.0.1:${PORT}/simple", "${INDEX_URL}"):
        assert env("pip", "--index-url", url, "-o", "out.txt") == 0
        assert content("out.txt")[0] == f"--extra-index-url {url}"


def test_needed_by_preinstalled_excludes_requested_packages(work: Path) -> None:
    bare = read_lock(work / "bare.lock")
    in_image = with_kept(bare, "torch")
    assert Installation(bare).needed_by_preinstalled == frozenset()
    assert Installation(in_image).needed_by_preinstalled == {"pytorch-triton-rocm"}
    # A requested distribution is installed, even if packages of the image also need it.
    requirements = (*in_image.request.requirements, parse_requirement("pytorch-triton-rocm"))
    changed = replace(in_image, request=replace(in_image.request, requirements=requirements))
    assert Installation(changed).needed_by_preinstalled == frozenset()
    # A distribution that other packages also need is installed.
    assert Installation(with_kept(bare, "torchvision")).needed_by_preinstalled == frozenset()


def test_lock_without_python_is_rejected(work: Path) -> None:
    data = read_lock(work / "bare.lock")
    without = replace(
        data,
        target=replace(data.target, python=""),
        picks=tuple(pick for pick in data.picks if pick.name != "python"),
    )
    with pytest.raises(UsageError, match="no Python"):
        Installation(without)


def test_missing_placeholder_raises_key_error() -> None:
    with pytest.raises(KeyError):
        fill("head.sh", script="x")


@pytest.mark.parametrize(
    ("consumer", "files"),
    [
        ("pip", ["out.txt", "constraints.txt"]),
        ("uv", ["out.txt"]),
        ("pylock", ["pylock.toml"]),
        ("cotainr", ["out.txt", "build.sh"]),
        ("tykky", ["req.txt", "build.sh"]),
        ("venv", ["out.txt", "create_venv.sh"]),
        ("easybuild", ["out.txt"]),
        ("apptainer", ["out.txt"]),
    ],
)
@pytest.mark.parametrize("has_rocm", [True, False])
def test_files_name_the_gpu_to_the_packages_of_rocm(
    work: Path, consumer: str, files: list[str], *, has_rocm: bool
) -> None:
    """A login node has no GPU, so the sdist ``rocm`` would choose the packages of another one."""
    lock = read_lock(Path("kept.lock" if consumer in {"venv", "easybuild", "apptainer"} else "bare.lock"))
    name = "rocm_sdk_core" if has_rocm else "six"
    file = File(f"{name}-7.14.1-py3-none-any.whl", f"https://index.example/{name}", "0" * 64, 1000)
    kept = [pick for pick in lock.picks if pick.kind == "platform" or pick.origin == "preinstalled"]
    picks = (*kept, locked_pick(name.replace("_", "-"), "7.14.1", file))
    write_lock(replace(lock, picks=picks), work / "sdk.lock")
    named = "pylock.toml" if consumer == "pylock" else "out.txt"
    assert env(consumer, "-o", named, lock="sdk.lock") == 0
    for path in files:
        text = (work / path).read_text()
        gpu = {"ROCM_SDK_TARGET_FAMILY=gfx90a", "ROCM_BOOTSTRAP_FORCE_GFX_ARCH=gfx90a"}
        plain = text.replace('"', "").replace(" = ", "=")
        assert {setting for setting in gpu if setting in plain} == (gpu if has_rocm else set()), path
        if has_rocm and consumer != "uv":  # pip's cache may have the packages of another GPU
            assert "PIP_NO_CACHE_DIR=1" in plain, path


@pytest.mark.parametrize("targets", [("gfx90a",), ("gfx90a", "gfx942")])
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("consumer", "file"),
    [("pip", "out.txt"), ("uv", "out.txt"), ("cotainr", "out.txt"), ("tykky", "req.txt")],
)
def test_files_install_the_code_of_the_targets_only(
    work: Path, consumer: str, file: str, targets: tuple[str, ...], *, complete: bool
) -> None:
    """If the lock lacks the packages that torch requires, its extras require those of the targets."""
    lock = read_lock(Path("bare.lock"))
    version, extras = "2.14.0+rocm10.1.0", tuple(f"device-{gfx}" for gfx in targets)
    names = ["torch", *(f"{kind}-device-{gfx}" for kind in ("amd-torch", "rocm-sdk") for gfx in targets)]
    picks = [pick for pick in lock.picks if pick.kind == "platform"]
    for name in names if complete else names[:1]:
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        listed = File(wheel, f"https://index.example/{wheel}", "0" * 64, 1000)
        picks.append(replace(locked_pick(name, version, listed), extras=extras if name == "torch" else ()))
    target = replace(lock.target, gfx=targets)
    left_open = () if complete else ("the requirements of torch: no index was read",)
    changed = replace(lock, picks=tuple(picks), target=target, edges=(), left_open=left_open)
    write_lock(changed, work / "device.lock")
    assert env(consumer, "-o", "out.txt", lock="device.lock") == 0
    text = (work / file).read_text()
    assert {*re.findall(r"device-(?:all|gfx\w+)", text)} == {*extras}, text
    assert (f"torch[{','.join(extras)}]" in text) == (not complete)
