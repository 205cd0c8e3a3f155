"""``matrix env`` for locks that have every distribution of the environment."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.pylock import Pylock
from ruamel.yaml import YAML

from builders.index import Index
from builders.machine.host import running_python
from builders.network.urls import public_index
from matrix.api import write_lock
from matrix.cli import main
from matrix.consumers import consumer_names
from matrix.consumers.shared.installation import Installation, Layout
from matrix.consumers.shared.requirements import requirement_lines
from matrix.consumers.shared.shell import installed_check
from resolver.indexes import File
from resolver.lock import read_lock
from resolver.model import BaseImage, Resolution
from tests.support.locks import built_pick, local_file, lock_of, locked_pick, with_image, with_kept
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
LABEL = "1.0+cpu.torch2.13.0"
PYPI, TORCH = "https://index.example/simple", "https://torch.example/whl/cpu"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a lock with torch, its dependencies and a wheel that we build, which is in the index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = tmp_path / "files"
    torch = tiny_wheel(files, "torch", "2.13.0+cpu", requires=["sympy"])
    sympy = tiny_wheel(files, "sympy", "1.14.0", requires=["mpmath"])
    mpmath = tiny_wheel(files, "mpmath", "1.3.0")
    wheel = tiny_wheel(tmp_path / "made", "deepspeed", LABEL, requires=["torch"])
    Index(tmp_path / "index").publish(wheel, {"build_key": "x"})
    write(
        lock_of(
            built_pick("deepspeed", wheel_version=LABEL),
            locked_pick("torch", "2.13.0+cpu", local_file(torch, index=TORCH), index=TORCH),
            locked_pick("sympy", "1.14.0", local_file(sympy)),
            locked_pick("mpmath", "1.3.0", local_file(mpmath)),
            requested=("deepspeed",),
        )
    )
    return tmp_path


def write(lock: Resolution, path: str = "matrix.lock") -> Resolution:
    write_lock(lock, path)
    return lock


def changed(name: str, **fields: Any) -> Resolution:
    """Write the lock again with one distribution changed."""
    lock = read_lock(Path("matrix.lock"))
    picks = tuple(replace(pick, **fields) if pick.name == name else pick for pick in lock.picks)
    return write(replace(lock, picks=picks))


def sdist(folder: Path, name: str, version: str, *requires: str) -> Path:
    """Write an sdist with build requirements."""
    path = folder / f"{name}-{version}.tar.gz"
    texts = {
        "pyproject.toml": f"[build-system]\nrequires = {list(requires)}\n",
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for file, text in texts.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def add_sdist(work: Path, *requires: str) -> None:
    """Add a distribution that has no wheel, with build requirements."""
    path = sdist(work / "files", "docopt", "0.6.2", *requires)
    lock = read_lock(Path("matrix.lock"))
    write(replace(lock, picks=(*lock.picks, locked_pick("docopt", "0.6.2", local_file(path)))))


def lines_of(path: str) -> list[str]:
    return [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]


def test_lock_is_complete_only_with_all_files() -> None:
    file = local_file(Path(__file__))
    has, lacks = locked_pick("a", "1", file), locked_pick("b", "1")
    assert lock_of(has, built_pick("c")).is_complete
    assert not lock_of(has, lacks).is_complete
    assert not lock_of(has, left_open=("d>=1",)).is_complete
    # A closed lock may keep every published distribution of an image, and leave the others to pip.
    assert not lock_of(built_pick("c")).is_complete


def test_pip_is_told_to_resolve_nothing(work: Path, capsys: Capture) -> None:
    del work
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    assert (
        "# Install with `python -m pip install --no-deps -r requirements.txt -c constraints.txt`."
        in Path("requirements.txt").read_text()
    )
    lines = lines_of("requirements.txt")
    assert lines[1:3] == [f"--extra-index-url {TORCH}", "--only-binary :all:"]
    pins = {f"deepspeed=={LABEL}", "torch==2.13.0+cpu", "sympy==1.14.0", "mpmath==1.3.0"}
    assert {line.partition(" --hash")[0] for line in lines[3:]} == set(lines_of("constraints.txt")) == pins
    assert "to pip" not in capsys.readouterr().err


def test_hashes_are_those_of_lock_and_index(work: Path) -> None:
    torch = read_lock(Path("matrix.lock")).pick("torch")
    assert torch is not None
    other = replace(torch.files[0], name="torch-2.13.0+cpu-py3-none-linux_x86_64.whl", sha256="b" * 64)
    changed("torch", files=(*torch.files, other))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    (wheel,) = Index(work / "index").wheels("deepspeed")
    hashes = dict(line.split(" ", 1) for line in lines_of("requirements.txt") if "==" in line)
    assert hashes[f"deepspeed=={LABEL}"] == f"--hash=sha256:{sha256(wheel)}"
    assert hashes["torch==2.13.0+cpu"] == f"--hash=sha256:{torch.files[0].sha256} --hash=sha256:{'b' * 64}"
    assert len(hashes) == 4


def test_hashes_need_wheels_that_are_built(work: Path, capsys: Capture) -> None:
    """With a hash of another distribution, pip would refuse the wheel that is built later."""
    changed("deepspeed", wheel_version="2.0+cpu")
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    assert "Build it with `matrix build-wheels`, and run this command again" in capsys.readouterr().err
    assert "sha256" not in (work / "requirements.txt").read_text()


def without_hash(name: str) -> None:
    pick = read_lock(Path("matrix.lock")).pick(name)
    assert pick is not None
    changed(name, files=(replace(pick.files[0], sha256=""),))


def test_beside_a_file_without_hash_others_are_urls_with_hashes(work: Path) -> None:
    without_hash("mpmath")
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    files = {pick.name: pick.files[0] for pick in read_lock(Path("matrix.lock")).distributions if pick.files}
    (wheel,) = Index(work / "index").wheels("deepspeed")
    ours = f"{wheel.as_uri()}#sha256={sha256(wheel)}"
    assert set(lines_of("requirements.txt")[3:]) == {
        f"deepspeed @ {ours}",
        *(f"{name} @ {files[name].url}#sha256={files[name].sha256}" for name in ("torch", "sympy")),
        "mpmath==1.3.0",
    }


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_each_line_has_the_hash_that_is_known(known: list[bool]) -> None:
    names = [f"p{number}-1.0-py3-none-any.whl" for number in range(len(known))]
    files = [
        File(name, f"https://files.example/{name}", str(number) * 64 if known[number] else "", index=TORCH)
        for number, name in enumerate(names)
    ]
    lock = lock_of(*(locked_pick(file.name[:2], "1.0", file, index=TORCH) for file in files))
    lines = requirement_lines(Installation(lock), Layout("requirements.txt", Path("index")), "file:///index")
    for number, is_known in enumerate(known):
        (line,) = (line for line in lines if line.startswith(f"p{number}"))
        digest = str(number) * 64
        hashed = f" --hash=sha256:{digest}" if all(known) else f"#sha256={digest}"
        assert line.endswith(hashed) if is_known else line == f"p{number}==1.0"


def test_file_without_hash_is_error_for_pylock(work: Path, capsys: Capture) -> None:
    without_hash("mpmath")
    assert main(["env", "--for", "pylock"]) == 1
    output = capsys.readouterr()
    assert "No SHA-256 is known for mpmath-1.3.0-py3-none-any.whl" in output.err
    assert output.out == ""
    del work


@pytest.mark.parametrize(("count", "text"), [(1, "a>=1"), (2, "a>=1; b>=1"), (4, "a>=1; b>=1 and 2 more")])
def test_open_requirements_are_reported(work: Path, capsys: Capture, count: int, text: str) -> None:
    lock = read_lock(Path("matrix.lock"))
    write(replace(lock, left_open=("a>=1", "b>=1", "c>=1", "d>=1")[:count]))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    output = capsys.readouterr().err
    assert f"The lock leaves to pip: {text}. To lock everything, run `matrix resolve`" in output
    assert "--no-deps" not in Path("requirements.txt").read_text()
    assert "sha256" not in Path("requirements.txt").read_text()
    del work


def publish(work: Path, *requires: str) -> None:
    """Publish the wheel again, with other requirements."""
    (old,) = Index(work / "index").wheels("deepspeed")
    old.unlink()
    wheel = tiny_wheel(work / "again", "deepspeed", LABEL, requires=requires)
    Index(work / "index").publish(wheel, {"build_key": "y"})


@pytest.mark.parametrize("requirement", ["einops>=0.8", "sympy>=2", "mpmath; python_version > '3'"])
def test_requirements_of_our_wheels_must_be_locked(work: Path, capsys: Capture, requirement: str) -> None:
    publish(work, "torch==2.13.0+cpu", "docopt; sys_platform == 'win32'", requirement)
    is_met = requirement.startswith("mpmath")
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    text = f"The lock leaves to pip: {requirement}, which the wheel of deepspeed requires."
    assert (text in capsys.readouterr().err) is not is_met
    assert ("--no-deps" in Path("requirements.txt").read_text()) is is_met
    assert ("--hash" in Path("requirements.txt").read_text()) is is_met
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    assert (f"The wheelhouse lacks {requirement}" in capsys.readouterr().err) is not is_met


@pytest.mark.parametrize("consumer", ["apptainer", "pip"])
def test_requirement_of_our_wheel_must_be_in_the_wheelhouse(
    work: Path, capsys: Capture, consumer: str
) -> None:
    """With a wheelhouse, pip uses no index, so the environment could not be installed."""
    lock = read_lock(Path("matrix.lock"))
    image = BaseImage(name="base", path=str(work / "base.sif"))
    write(with_kept(with_image(lock, image), "torch") if consumer == "apptainer" else lock)
    publish(work, "torch==2.13.0+cpu", "einops>=0.8")
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    command = ["env", "--for", consumer, "--wheelhouse", "wheels", "-o", "out.txt"]
    assert main(command) == 1
    assert "The wheelhouse wheels lacks einops>=0.8, which the wheel of deepspeed" in capsys.readouterr().err
    assert not Path("out.txt").exists()
    tiny_wheel(work / "wheels", "einops", "0.7.0")
    assert main(command) == 1
    tiny_wheel(work / "wheels", "einops", "0.8.1")
    assert main(command) == 0


def test_wheel_that_is_not_built_leaves_its_requirements_open(work: Path, capsys: Capture) -> None:
    (wheel,) = Index(work / "index").wheels("deepspeed")
    wheel.unlink()
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    assert "the requirements of deepspeed, which is not built yet" in capsys.readouterr().err
    assert "--no-deps" not in Path("requirements.txt").read_text()


def test_public_index_is_not_named(work: Path) -> None:
    changed("mpmath", index=public_index().rstrip("/"))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    urls = [line for line in lines_of("requirements.txt") if line.startswith("--extra-index-url")]
    assert urls == [f"--extra-index-url {(work / 'index' / 'simple').as_uri()}", f"--extra-index-url {TORCH}"]


def test_index_is_not_needed_if_nothing_is_built(work: Path) -> None:
    lock = read_lock(Path("matrix.lock"))
    write(replace(lock, picks=tuple(pick for pick in lock.picks if pick.origin != "build")))
    for consumer in ("cotainr", "pip"):
        assert main(["env", "--for", consumer, "-o", "."]) == 0
    assert lines_of("requirements.txt")[0] == f"--extra-index-url {TORCH}"
    assert "file:///mnt" not in Path("env.yml").read_text()
    assert "MATRIX_INDEX:-" not in Path("build.sh").read_text()
    assert "SINGULARITY_BIND=" not in Path("build.sh").read_text()
    del work


def test_cotainr_section_is_plain_text_and_pip_resolves_nothing(work: Path) -> None:
    del work
    assert main(["env", "--for", "cotainr", "-o", "."]) == 0
    section = YAML(typ="safe").load(Path("env.yml").read_text())["dependencies"][-1]["pip"]
    assert "--only-binary :all:" in section
    assert any(line.startswith(f"deepspeed=={LABEL} --hash=sha256:") for line in section)
    script = Path("build.sh").read_text()
    assert "\nexport PIP_NO_DEPS=1\n" in script
    assert '"mpmath": "1.3.0"' in script


def test_tykky_script_sets_variable(work: Path) -> None:
    del work
    assert main(["env", "--for", "tykky", "-o", "env.yml"]) == 0
    assert "\nexport PIP_NO_DEPS=1\n" in Path("build.sh").read_text()


def test_sdist_is_not_limited_to_wheels(work: Path) -> None:
    """PIP_NO_DEPS is not set, because it would also apply to the build requirements of the sdist."""
    add_sdist(work)
    assert main(["env", "--for", "cotainr", "-o", "."]) == 0
    section = YAML(typ="safe").load(Path("env.yml").read_text())["dependencies"][-1]["pip"]
    only = {line.split()[1] for line in section if line.startswith("--only-binary")}
    assert only == {"deepspeed", "torch", "sympy", "mpmath"}
    assert any(line.startswith("docopt==0.6.2 --hash=sha256:") for line in section)
    assert "PIP_NO_DEPS" not in Path("build.sh").read_text()
    assert main(["env", "--for", "uv", "-o", "pyproject.toml"]) == 0
    tool = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["uv"]
    assert set(tool["no-build-package"]) == only


def test_direct_reference_is_installed_from_its_url(work: Path) -> None:
    pick = read_lock(Path("matrix.lock")).pick("mpmath")
    assert pick is not None
    url = "https://files.example/mpmath-1.3.0-py3-none-any.whl"
    changed("mpmath", files=(replace(pick.files[0], url=url, index=""),))
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    digest = pick.files[0].sha256
    assert f"mpmath @ {url}#sha256={digest} --hash=sha256:{digest}" in lines_of("requirements.txt")
    assert main(["env", "--for", "uv", "-o", "pyproject.toml"]) == 0
    sources = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["uv"]["sources"]
    assert sources["mpmath"] == {"url": url}
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    packages = tomllib.loads(Path("pylock.toml").read_text())["packages"]
    (package,) = [package for package in packages if package["name"] == "mpmath"]
    assert package["archive"]["url"] == url
    del work


def test_pylock_is_complete(work: Path, capsys: Capture) -> None:
    add_sdist(work)
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    text = Path("pylock.toml").read_text()
    lock = Pylock.from_dict(tomllib.loads(text))
    assert "nothing else" not in text
    hosts = "The lock names hosts that your configuration does not name: index.example, torch.example.\n"
    assert capsys.readouterr().err == f"{hosts}Wrote pylock.toml\n"
    packages = {str(package.name): package for package in lock.packages}
    assert {*packages} == {"deepspeed", "docopt", "mpmath", "sympy", "torch"}
    torch, docopt = packages["torch"], packages["docopt"]
    assert torch.index == TORCH
    assert torch.wheels is not None
    assert torch.wheels[0].hashes == {"sha256": sha256(work / "files" / torch.wheels[0].filename)}
    assert docopt.sdist is not None
    assert docopt.sdist.filename == "docopt-0.6.2.tar.gz"


def fill(work: Path) -> Path:
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    return work / "wheels"


def test_wheelhouse_has_what_sdists_are_built_with(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    offered = work / "offered"
    for version in ("1.0", "2.0"):
        tiny_wheel(offered, "maker", version, requires=["helper"])
    tiny_wheel(offered, "helper", "1.0")
    sdist(offered, "tool", "1.0", "maker<2")  # it is built before docopt is
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    add_sdist(work, "tool", "sympy")
    built_with = {"tool-1.0.tar.gz", "maker-1.0-py3-none-any.whl", "helper-1.0-py3-none-any.whl"}
    names = {path.name for path in fill(work).iterdir()}
    assert built_with < names
    assert "maker-2.0-py3-none-any.whl" not in names
    assert "build requirements of" not in capsys.readouterr().err


@pytest.mark.parametrize("requirement", ["maker", "not a requirement"])
def test_build_requirements_that_cannot_be_had_are_named(
    work: Path, capsys: Capture, requirement: str
) -> None:
    add_sdist(work, requirement)
    assert fill(work).exists()
    assert "The build requirements of docopt 0.6.2 are missing: " in capsys.readouterr().err


@pytest.mark.parametrize("consumer", ["pip", "tykky", "cotainr"])
def test_wheelhouse_replaces_all_indexes(work: Path, capsys: Capture, consumer: str) -> None:
    wheels = fill(work)
    capsys.readouterr()
    assert main(["env", "--for", consumer, "--wheelhouse", "wheels", "-o", "."]) == 0
    text = Path({"pip": "requirements.txt", "tykky": "req.txt"}.get(consumer, "env.yml")).read_text()
    where = "file:///mnt" if consumer == "cotainr" else wheels.as_uri()
    assert f"--find-links {where}\n" in text
    assert "--no-index\n" in text
    assert "index-url" not in text
    assert text.count("--hash=sha256:") == 4
    if consumer == "cotainr":
        script = Path("build.sh").read_text()
        assert f"index=${{MATRIX_WHEELHOUSE:-{wheels}}}" in script
        assert "need mpmath-1.3.0-py3-none-any.whl" in script


def test_wheelhouse_for_containers_on_image(work: Path) -> None:
    wheels = fill(work)
    lock = with_image(read_lock(Path("matrix.lock")), BaseImage(name="base", path="/images/base.sif"))
    write(with_kept(lock, "torch", "sympy", "mpmath"), "kept.lock")
    for consumer in ("venv", "easybuild", "apptainer"):
        assert (
            main(["env", "--for", consumer, "--lock", "kept.lock", "--wheelhouse", "wheels", "-o", "."]) == 0
        )
    assert "--find-links file:///mnt\n" in Path("requirements.txt").read_text()
    assert f"--find-links {wheels.as_uri()}\n" in Path("easyconfig-lines.py").read_text()
    assert f"'{wheels}:{wheels}:ro'" in Path("easyconfig-lines.py").read_text()
    assert f"    {wheels} /opt/matrix-files/wheels\n" in Path("container.def").read_text()
    assert f"index=${{MATRIX_WHEELHOUSE:-{wheels}}}" in Path("create_venv.sh").read_text()
    assert subprocess.run(["bash", "-n", "create_venv.sh"], check=False).returncode == 0


def test_all_files_must_be_in_wheelhouse(work: Path, capsys: Capture) -> None:
    wheels = fill(work)
    (wheels / "mpmath-1.3.0-py3-none-any.whl").unlink()
    capsys.readouterr()
    for consumer in {*consumer_names()} - {"venv", "easybuild"}:
        assert main(["env", "--for", consumer, "--wheelhouse", "wheels", "-o", "out"]) == 1
        output = capsys.readouterr().err
        assert "The wheelhouse wheels has no file for mpmath==1.3.0." in output
        assert "`matrix farm fetch --wheelhouse wheels`" in output
    assert not (work / "out").exists()


def test_uv_installs_from_wheelhouse_only(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(work)
    monkeypatch.setenv("UV_CACHE_DIR", str(work / "cache"))
    (work / "project").mkdir()
    assert main(["env", "--for", "uv", "--wheelhouse", "wheels", "-o", "project"]) == 0
    command = [uv.find_uv_bin(), "sync", "--offline", "--project", "project", "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["env", "--for", "pylock", "--wheelhouse", "wheels", "-o", "project/pylock.toml"]) == 0
    command = [uv.find_uv_bin(), "pip", "install", "--offline", "--python", sys.executable]
    target = ["--target", "installed", "-r", "project/pylock.toml", "--preview"]
    done = subprocess.run([*command, *target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = work / "project" / ".venv" / "lib" / f"python{running_python()}" / "site-packages"
    for folder in (site, work / "installed"):
        names = {path.name for path in folder.glob("*.dist-info")}
        assert names == {
            f"deepspeed-{LABEL}.dist-info",
            "mpmath-1.3.0.dist-info",
            "sympy-1.14.0.dist-info",
            "torch-2.13.0+cpu.dist-info",
        }


def run_check(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-S", "-c", program], {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def test_check_finds_what_is_not_in_lock(tmp_path: Path) -> None:
    for name, installer in (
        ("mpmath", "pip"),
        ("pip", "pip"),
        ("Extra_One", "pip"),
        ("conda", "conda"),
        ("nvidia_ml_py", "pip"),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "INSTALLER").write_text(f"{installer}\n")
    picks = [locked_pick("mpmath", "1.0"), locked_pick("nvidia-ml-py", "1.0")]
    assert run_check(tmp_path, installed_check(picks)).returncode == 0
    assert "is for CUDA" in run_check(tmp_path, installed_check(picks[:1])).stderr
    done = run_check(tmp_path, installed_check(picks, nothing_else=True))
    assert done.returncode == 1
    assert "extra-one 1.0 is not in the lock" in done.stderr
    assert done.stderr.count("is not in the lock") == 1
