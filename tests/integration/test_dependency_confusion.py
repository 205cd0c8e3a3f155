"""Dependency confusion: a second index on a server has higher versions of everything that we install.

pip and uv are configured to use it besides the first index. It stands in for a public index on which a
stranger registered the names of packages that only we have, and for a careless second registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from builders.containers.runtime import HostRuntime
from builders.environments.python import find_python
from builders.environments.wheelhouse import FetchOptions, fetch_wheels
from builders.index import Index
from builders.machine.host import running_python
from matrix.api import write_lock
from matrix.cli import main
from resolver.errors import EnvironmentLacksError
from resolver.indexes import IndexStrategy
from resolver.lock import read_lock
from resolver.model import BaseImage, Resolution
from resolver.reporter import SILENT
from tests.support.locks import built_pick, local_file, locked_pick, with_image, with_kept
from tests.support.tiny import tiny_index, tiny_wheel
from tests.support.web_server import web_server

pytestmark = pytest.mark.integration
Capture = pytest.CaptureFixture[str]
LABEL = "cpu.torch2.13.0"
OURS = {"deepspeed": f"0.19.8+{LABEL}", "mylab-ext": f"1.0+{LABEL}"}
OTHERS = {"torch": "2.13.0+cpu", "sympy": "1.14.0", "mpmath": "1.3.0"}
REQUIRES = {"torch": ["sympy"], "sympy": ["mpmath"]}


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a running index that has higher versions of everything, and our labels."""
    names = [*OURS, *OTHERS, "apex", "setuptools", "ninja"]
    root = tiny_index(
        tmp_path / "evil",
        {name: [("99.0", []), ("99.0+cpu", []), (f"99.0+{LABEL}", [])] for name in names},
    )
    with web_server(root) as url:
        yield f"{url}/simple"


@pytest.fixture
def first(tmp_path: Path) -> str:
    """Return the URL of the first index, which has the right packages."""
    packages = {
        name: [(version, REQUIRES.get(name, []))] for name, version in OTHERS.items() if name != "torch"
    }
    tools: dict[str, list[tuple[str, list[str]]]] = {"setuptools": [("80.0", [])], "ninja": [("1.11", [])]}
    return (tiny_index(tmp_path / "first", packages | tools) / "simple").as_uri()


@pytest.fixture
def both(first: str, evil: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure pip and uv to use both indexes; return the URL of the first."""
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    own = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": first,
        "PIP_EXTRA_INDEX_URL": evil,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_DEFAULT_INDEX": first,
        "UV_INDEX": evil,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return first


@pytest.fixture
def lock(tmp_path: Path, both: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Resolution:
    """Return a complete lock, with our wheels in our index; no other index has ``mylab-ext``."""
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": None, "PIP_EXTRA_INDEX_URL": None}.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        assert main(["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    torch = tiny_index(tmp_path / "torch", {"torch": [(OTHERS["torch"], REQUIRES["torch"])]}) / "simple"
    resolution = read_lock(Path("matrix.lock"))
    picks = [pick for pick in resolution.picks if pick.name not in OTHERS]
    picks.append(built_pick("mylab-ext", wheel_version=OURS["mylab-ext"]))
    for name, version in OTHERS.items():
        folder = torch if name == "torch" else Path(both.removeprefix("file://"))
        url = torch.as_uri() if name == "torch" else both
        (wheel,) = (folder / name).glob("*.whl")
        picks.append(locked_pick(name, version, local_file(wheel, index=url), index=url))
    for name, version in OURS.items():
        requires = ["torch", "sympy"] if name == "deepspeed" else ["deepspeed"]
        wheel = tiny_wheel(tmp_path / "made", name, version, requires=requires)
        Index(tmp_path / "index").publish(wheel, {"build_key": name})
    complete = replace(resolution, picks=tuple(picks), left_open=())
    write_lock(complete)
    capsys.readouterr()
    return complete


def install(command: Sequence[str], folder: Path) -> tuple[int, dict[str, str]]:
    """Install with pip or uv into a directory; return the exit code and the installed versions."""
    done = subprocess.run([*command, "--target", str(folder)], check=False, capture_output=True, text=True)
    names = (path.name.removesuffix(".dist-info").rpartition("-") for path in folder.glob("*.dist-info"))
    return done.returncode, {name.replace("_", "-"): version for name, _, version in names}


PIP = [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
UV = [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", sys.executable]


def requirements_in(folder: Path, index: Path) -> Path:
    """Return a requirements file with the lines for pip in the files of a consumer."""
    text = "\n".join(path.read_text() for path in sorted(folder.iterdir()) if path.name != "constraints.txt")
    lines = [line.strip().removeprefix("- ").strip("'\",") for line in text.splitlines()]
    pattern = re.compile(r"--(extra-index-url|only-binary) \S+|[a-z0-9-]+==\S+( --hash=\S+)?")
    kept = dict.fromkeys(line for line in lines if pattern.fullmatch(line))
    path = folder / "lines.txt"
    real = re.sub(r"file:///\S*?simple", (index / "simple").as_uri(), "\n".join(kept), count=1)
    path.write_text(f"{real}\n")
    return path


@pytest.mark.usefixtures("lock")
@pytest.mark.parametrize("consumer", ["pip", "cotainr", "tykky"])
def test_pip_installs_what_the_lock_has(consumer: str, tmp_path: Path) -> None:
    """Install with pip's resolver, which finds the higher versions, and without it."""
    out = tmp_path / "out"
    out.mkdir()
    assert main(["env", "--for", consumer, "-o", str(out)]) == 0
    lines = str(requirements_in(out, tmp_path / "index"))
    for flags in ([], ["--no-deps"]):
        installed = install([*PIP, *flags, "-r", lines], tmp_path / f"in{len(flags)}")
        assert installed == (0, OURS | OTHERS)


@pytest.mark.parametrize("consumer", ["venv", "easybuild", "apptainer"])
def test_extended_image_gets_what_the_lock_has(lock: Resolution, consumer: str, tmp_path: Path) -> None:
    kept = with_kept(with_image(lock, BaseImage(name="base", path="/base.sif")), "torch")
    write_lock(kept)
    out = tmp_path / "out"
    out.mkdir()
    assert main(["env", "--for", consumer, "-o", str(out)]) == 0
    assert any("--no-deps" in path.read_text() for path in out.iterdir())
    lines = requirements_in(out, tmp_path / "index")
    lines.write_text(lines.read_text().replace(f"torch=={OTHERS['torch']}\n", ""))  # a constraint
    code, installed = install([*PIP, "--no-deps", "-r", str(lines)], tmp_path / "in")
    assert code == 0
    assert set(OURS) <= set(installed)
    assert {name: (OURS | OTHERS)[name] for name in installed} == installed


@pytest.mark.usefixtures("lock")
def test_uv_installs_what_the_lock_has(tmp_path: Path, evil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With UV_INDEX, uv queries no other index for a name that UV_INDEX has, so uv must fail."""
    (tmp_path / "out").mkdir()
    assert main(["env", "--for", "uv", "-o", "out"]) == 0
    command = [uv.find_uv_bin(), "sync", "--no-cache", "--project", "out", "--python", sys.executable]
    site = tmp_path / "out" / ".venv" / "lib" / f"python{running_python()}" / "site-packages"
    for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX"):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("UV_INDEX")
            patch.setenv(variable, evil)
            subprocess.run(command, check=False, capture_output=True)
        assert "99.0" not in str(list(site.glob("*.dist-info")))
    monkeypatch.delenv("UV_INDEX")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = (path.name.removesuffix(".dist-info").rpartition("-") for path in site.glob("*.dist-info"))
    assert {name.replace("_", "-"): version for name, _, version in names} == OURS | OTHERS


@pytest.mark.usefixtures("lock")
def test_uv_pip_installs_what_the_lock_has(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert main(["env", "--for", "pip", "-o", "out"]) == 0
    _, installed = install([*UV, "-r", "out/requirements.txt"], tmp_path / "in")
    assert "99" not in str(installed)
    assert main(["env", "--for", "pylock", "-o", "out/pylock.toml"]) == 0
    code, installed = install([*UV, "-r", "out/pylock.toml"], tmp_path / "from-pylock")
    assert (code, installed) == (0, OURS | OTHERS)


@pytest.fixture
def pure(tmp_path: Path, both: str, evil: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what an environment without torch installs; the second index has the same versions."""
    del both, evil
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            patch.delenv(name)
        assert main(["resolve", "mpi4py", "--no-prebuilt", "--backend", "cpu", "-q"]) == 0
    (pick,) = read_lock(Path("matrix.lock")).built()
    versions = [(version, ["ninja"]) for version in (pick.version, f"{pick.version}+cpu", "99.0")]
    tiny_index(tmp_path / "evil", {pick.name: versions})
    wheel = tiny_wheel(tmp_path / "made", pick.name, pick.pinned)
    Index(tmp_path / "index").publish(wheel, {"build_key": "0"})
    return {pick.name: pick.pinned}


@pytest.mark.parametrize("consumer", ["pip", "cotainr", "tykky"])
def test_wheel_for_an_environment_without_torch_is_not_replaced(
    pure: dict[str, str], consumer: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["env", "--for", consumer, "-o", str(out)]) == 0
    lines = requirements_in(out, tmp_path / "index")
    assert install([*PIP, "-r", str(lines)], tmp_path / "in") == (0, pure)
    _, installed = install([*UV, "-r", str(lines)], tmp_path / "with-uv")
    assert installed in ({}, pure)  # uv asks no other index for a name that UV_INDEX has


def test_uv_does_not_replace_the_wheel_for_an_environment_without_torch(
    pure: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    assert main(["env", "--for", "uv", "-o", "out"]) == 0
    monkeypatch.delenv("UV_INDEX")
    command = [uv.find_uv_bin(), "sync", "--no-cache", "--project", "out", "--python", sys.executable]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "out" / ".venv" / "lib" / f"python{running_python()}" / "site-packages"
    (installed,) = site.glob("*.dist-info")
    ((name, version),) = pure.items()
    assert installed.name == f"{name}-{version}.dist-info"


@pytest.mark.usefixtures("lock")
def test_hashes_reject_the_same_version_of_another_index(tmp_path: Path) -> None:
    """A second index may have exactly our version, with a higher build tag; only hashes reject it."""
    for name, version in OURS.items():
        folder = tmp_path / "evil" / "simple" / name
        wheel = tiny_wheel(folder, name, version, requires=["ninja"])
        other = wheel.rename(folder / wheel.name.replace("-py3", "-9-py3"))
        (folder / "index.html").write_text(f'<a href="{other.name.replace("+", "%2B")}">{other.name}</a>')
    (tmp_path / "out").mkdir()
    assert main(["env", "--for", "pip", "-o", "out"]) == 0
    code, installed = install([*PIP, "-r", "out/requirements.txt"], tmp_path / "in")
    assert (code, installed) == (0, OURS | OTHERS)


def fetched(tmp_path: Path, *requirements: str, strategy: IndexStrategy = "first-index") -> dict[str, str]:
    """Fetch build requirements for this Python; return their versions."""
    options = FetchOptions(tmp_path / "log", SILENT, strategy=strategy)
    python = find_python(HostRuntime(), running_python())
    house = fetch_wheels(HostRuntime(), python, requirements, options)
    return {wheel.name: wheel.version for wheel in house.wheels}


def test_build_requirements_come_from_the_first_index(
    both: str, evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is the extra index: the default one has higher versions, and later the same version."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", evil)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", both)
    assert fetched(tmp_path, "setuptools", "ninja") == {"setuptools": "80.0", "ninja": "1.11"}
    assert not list((tmp_path / "cache").rglob("setuptools-99.0*.whl"))
    assert fetched(tmp_path, "setuptools==99.0+cpu") == {"setuptools": "99.0+cpu"}
    assert fetched(tmp_path, "apex") == {"apex": f"99.0+{LABEL}"}  # only the default index has it
    with pytest.raises(EnvironmentLacksError) as caught:
        fetched(tmp_path, "setuptools>80.0")
    assert caught.value.hint.startswith("Of setuptools, only versions on the first index")
    higher = fetched(tmp_path, "setuptools", strategy="unsafe-best-match")
    assert higher == {"setuptools": f"99.0+{LABEL}"}
    folder = tmp_path / "evil" / "simple" / "setuptools"
    other = (wheel := tiny_wheel(folder, "setuptools", "80.0")).rename(
        folder / "setuptools-80.0-9-py3-none-any.whl"
    )
    assert not wheel.exists()
    (folder / "index.html").write_text(f'<a href="{other.name}">{other.name}</a>')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new-cache"))
    with pytest.raises(EnvironmentLacksError, match=r"comes first and has other files of this version"):
        fetched(tmp_path, "setuptools<99")


@pytest.mark.usefixtures("both")
def test_build_requirements_of_a_first_index_that_does_not_answer_come_from_no_other(
    evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", evil)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "unmounted").as_uri())
    with pytest.raises(EnvironmentLacksError, match="unmounted"):
        fetched(tmp_path, "setuptools")


def test_resolve_takes_projects_from_the_first_index(
    both: str, evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The user names ours, so the public one cannot replace its projects; pip's rule is an option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", evil)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    command = ["resolve", "mpmath", "ninja<99", "--backend", "cpu", "--python", running_python()]
    command += ["--extra-index-url", both]
    for options, version in (([], "1.3.0"), (["--index-strategy", "unsafe-best-match"], f"99.0+{LABEL}")):
        assert main([*command, *options, "-o", f"{version}.lock"]) == 0
        pick = read_lock(Path(f"{version}.lock")).pick("mpmath")
        assert pick is not None
        assert pick.version == version
        output = capsys.readouterr()
        warning = f"comes from {evil}, and {both} also has a project mpmath."
        assert (warning in output.out + output.err) is bool(options)
        assert "a project ninja" not in output.out + output.err


def test_resolve_follows_the_first_index_rule_of_uv(
    both: str, evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for default, extra in ((both, evil), (evil, both)):
        for strategy in ("first-index", "unsafe-best-match"):
            options = ["--extra-index-url", extra, "--index-strategy", strategy]
            command = [uv.find_uv_bin(), "pip", "compile", "-", "--no-cache", "--python-version", "3.12"]
            locked = subprocess.run(
                [*command, "--default-index", default, *options, "--no-header", "--no-annotate"],
                input="mpmath", text=True, check=True, capture_output=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("UV_")},
            ).stdout  # fmt: skip
            ours = ["resolve", "mpmath", "--backend", "cpu", "--python", "3.12", "--index-url", default]
            Path("matrix.lock").unlink(missing_ok=True)
            monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
            assert main([*ours, *options, "-q"]) == 0
            pick = read_lock(Path("matrix.lock")).pick("mpmath")
            assert pick is not None
            assert f"mpmath=={pick.version}" in locked.splitlines(), (default, extra, strategy)
