"""``matrix env --for pylock``: the file conforms to PEP 751, and uv installs it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uv
from packaging.pylock import Pylock

from builders.index import Index
from builders.machine.host import running_python
from matrix.api import write_lock
from matrix.cli import main
from resolver.facts.schema import Sdist
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
LABELLED = "0.19.8+cpu.torch2.13.0"
ABI = f"cp{running_python().replace('.', '')}"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a directory of wheel indexes on the loopback."""
    root = tmp_path / "web"
    root.mkdir()
    with web_server(root) as url:
        yield root, url


def serve(root: Path, project: str, *, hashes: bool = True) -> None:
    """Write the page of a project for the wheels in its directory."""
    links = []
    for path in sorted((root / project).glob("*.whl")):
        digest = f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" if hashes else ""
        links.append(f'<a href="{path.name.replace("+", "%2B")}{digest}">{path.name}</a>')
    (root / project / "index.html").write_text(f"<html>{''.join(links)}</html>")


@pytest.fixture
def lock(web: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Resolution:
    """Resolve deepspeed for this machine, with torch from an index on the loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{web[1]}/simple/")
    arguments = ["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]
    assert main(arguments) == 0
    capsys.readouterr()
    lock = read_lock(Path("matrix.lock"))
    picks = [
        msgspec.structs.replace(pick, index=f"{web[1]}/whl/cpu" if pick.name == "torch" else "")
        for pick in lock.picks
    ]
    lock = msgspec.structs.replace(lock, picks=tuple(picks))
    write_lock(lock)
    machine = platform.machine()
    whl = web[0] / "whl" / "cpu"
    for tags in (f"{ABI}-{ABI}-manylinux_2_17_{machine}", f"cp39-cp39-manylinux_2_17_{machine}"):
        tiny_wheel(whl / "torch", "torch", "2.13.0+cpu", tags=tags)
    tiny_wheel(whl / "torch", "torch", "2.12.0+cpu", tags=f"{ABI}-{ABI}-manylinux_2_17_{machine}")
    tiny_wheel(whl / "torch", "torch", "2.13.0+cpu", tags=f"{ABI}-{ABI}-win_amd64")
    serve(whl, "torch")
    return lock


@pytest.fixture
def built(lock: Resolution, tmp_path: Path) -> Path:
    """Publish the wheel of the lock in the index."""
    del lock
    made = tiny_wheel(
        tmp_path / "made", "deepspeed", LABELLED, tags=f"{ABI}-{ABI}-manylinux_2_17_{platform.machine()}"
    )
    return Index(tmp_path / "index").publish(made, {"build_key": "x"})


def read(path: str = "pylock.toml") -> dict[str, Any]:
    data = tomllib.loads(Path(path).read_text())
    Pylock.from_dict(data)  # which validates
    return data


def test_pylock_lists_every_file_with_location_and_hash(built: Path, capsys: Capture) -> None:
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    data = read()
    assert (data["lock-version"], data["created-by"]) == ("1.0", "matrix")
    assert data["requires-python"] == f"=={running_python()}.*"
    assert [package["name"] for package in data["packages"]] == ["deepspeed", "torch"]
    deepspeed, torch = data["packages"]
    assert deepspeed["version"] == LABELLED
    (file,) = deepspeed["wheels"]
    assert Path(file["path"]).resolve() == built
    assert not Path(file["path"]).is_absolute()
    assert file["hashes"] == {"sha256": hashlib.sha256(built.read_bytes()).hexdigest()}
    assert torch["version"] == "2.13.0+cpu"
    (file,) = torch["wheels"]
    assert file["url"].endswith(f"torch-2.13.0%2Bcpu-{ABI}-{ABI}-manylinux_2_17_{platform.machine()}.whl")
    assert set(file["hashes"]) == {"sha256"}
    output = capsys.readouterr().err
    assert "such as sympy for torch, are missing" in output
    assert data["tool"]["matrix"]["complete"] is False


def test_same_lock_gives_same_bytes(built: Path, capsys: Capture) -> None:
    del built
    texts = []
    for _ in range(2):
        assert main(["env", "--for", "pylock"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert Pylock.from_dict(tomllib.loads(texts[0])).created_by == "matrix"


def test_uv_installs_files_of_pylock(built: Path, tmp_path: Path, capsys: Capture) -> None:
    del built
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    capsys.readouterr()
    target = tmp_path / "installed"
    command = [uv.find_uv_bin(), "pip", "install", "--python", sys.executable, "--target", str(target)]
    command += ["--preview", "--no-cache", "-r", "pylock.toml"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"VERSION = '{LABELLED}'" in (target / "deepspeed.py").read_text()
    assert "2.13.0+cpu" in (target / "torch.py").read_text()


def test_uv_rejects_file_with_other_hash(built: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    capsys.readouterr()
    built.write_bytes(built.read_bytes() + b"more")
    command = [uv.find_uv_bin(), "pip", "install", "--python", sys.executable, "--no-cache"]
    command += ["--target", str(tmp_path / "installed"), "--preview", "-r", "pylock.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert built.name in done.stderr
    assert not (tmp_path / "installed" / "deepspeed.py").exists()


def test_wheels_of_served_index_have_urls(built: Path) -> None:
    url = "https://wheels.example/simple"
    assert main(["env", "--for", "pylock", "-o", "pylock.lumi.toml", "--index-url", url]) == 0
    (file,) = read("pylock.lumi.toml")["packages"][0]["wheels"]
    assert file["url"] == f"{url}/deepspeed/{built.name.replace('+', '%2B')}"
    assert "path" not in file


def test_wheel_paths_are_relative_to_pylock(built: Path) -> None:
    Path("deep/er").mkdir(parents=True)
    assert main(["env", "--for", "pylock", "-o", "deep/er/pylock.toml"]) == 0
    (file,) = read("deep/er/pylock.toml")["packages"][0]["wheels"]
    assert (Path("deep/er") / file["path"]).resolve() == built


def test_missing_wheels_are_listed_and_nothing_written(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 1
    output = capsys.readouterr().err
    assert f"does not contain deepspeed {LABELLED}" in output
    assert "matrix build-wheels" in output
    assert not Path("pylock.toml").exists()


def test_published_wheel_without_hash_is_error(built: Path, web: tuple[Path, str], capsys: Capture) -> None:
    del built
    serve(web[0] / "whl" / "cpu", "torch", hashes=False)
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 1
    assert "no hash for torch 2.13.0+cpu" in capsys.readouterr().err
    assert not Path("pylock.toml").exists()


def test_version_missing_from_index_is_error(built: Path, web: tuple[Path, str], capsys: Capture) -> None:
    del built
    for path in (web[0] / "whl" / "cpu" / "torch").glob("torch-2.13.0*"):
        path.unlink()
    serve(web[0] / "whl" / "cpu", "torch")
    assert main(["env", "--for", "pylock"]) == 1
    assert "no wheel of torch 2.13.0+cpu" in capsys.readouterr().err


def test_unreachable_index_is_exit_3(built: Path, lock: Resolution, capsys: Capture) -> None:
    del built
    picks = [
        msgspec.structs.replace(pick, index="http://127.0.0.1:9/whl/cpu") if pick.name == "torch" else pick
        for pick in lock.picks
    ]
    write_lock(msgspec.structs.replace(lock, picks=tuple(picks)))
    assert main(["env", "--for", "pylock"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "Cannot fetch the page of torch from the index http://127.0.0.1:9/whl/cpu" in output.err


def test_invalid_pylock_name_is_rejected(built: Path, capsys: Capture) -> None:
    del built
    assert main(["env", "--for", "pylock", "-o", "lumi.toml"]) == 2
    assert "pylock.NAME.toml" in capsys.readouterr().err


def test_preinstalled_packages_are_left_out_of_pylock(built: Path, lock: Resolution, capsys: Capture) -> None:
    del built
    picks = [
        msgspec.structs.replace(pick, origin="preinstalled") if pick.name == "torch" else pick
        for pick in lock.picks
    ]
    write_lock(msgspec.structs.replace(lock, picks=tuple(picks)))
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    data = read()
    assert [package["name"] for package in data["packages"]] == ["deepspeed"]
    assert data["tool"]["matrix"]["kept"] == ["torch==2.13.0+cpu"]
    assert "because the base image has them: torch" in capsys.readouterr().err


def test_published_wheel_must_match_hash_of_lock(
    lock: Resolution, web: tuple[Path, str], capsys: Capture
) -> None:
    pick = next(pick for pick in lock.picks if pick.name == "deepspeed")
    made = tiny_wheel(web[0] / "simple" / "deepspeed", "deepspeed", "0.19.8", tags="py3-none-any")
    serve(web[0] / "simple", "deepspeed")
    for digest, code in ((hashlib.sha256(made.read_bytes()).hexdigest(), 0), ("0" * 64, 1)):
        published = msgspec.structs.replace(
            pick,
            origin="published",
            wheel_version="",
            sdist=None,
            wheel=Sdist(made.name, digest),
        )
        picks = tuple(published if pick.name == "deepspeed" else pick for pick in lock.picks)
        write_lock(msgspec.structs.replace(lock, picks=picks))
        assert main(["env", "--for", "pylock"]) == code
    assert "its SHA-256 differs" in capsys.readouterr().err
