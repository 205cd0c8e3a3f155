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
from resolver.indexes import File
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.support.locks import locked_pick
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
LABELLED = "0.19.8+cpu.torch2.13.0"
ABI = f"cp{running_python().replace('.', '')}"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a directory of wheels on the loopback."""
    root = tmp_path / "web"
    root.mkdir()
    with web_server(root) as url:
        yield root, url


@pytest.fixture
def lock(web: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Resolution:
    """Resolve deepspeed for this machine, with torch from an index on the loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{web[1]}/simple/")
    arguments = ["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]
    assert main(arguments) == 0
    capsys.readouterr()
    index = f"{web[1]}/whl/cpu"
    tags = f"{ABI}-{ABI}-manylinux_2_17_{platform.machine()}"
    wheel = tiny_wheel(web[0] / "whl" / "cpu" / "torch", "torch", "2.13.0+cpu", tags=tags)
    url = f"{index}/torch/{wheel.name.replace('+', '%2B')}"
    file = File(wheel.name, url, hashlib.sha256(wheel.read_bytes()).hexdigest(), index=index)
    lock = read_lock(Path("matrix.lock"))
    picks = [
        msgspec.structs.replace(pick, index=index, files=(file,)) if pick.name == "torch" else pick
        for pick in lock.picks
    ]
    lock = msgspec.structs.replace(lock, picks=tuple(picks), left_open=())
    write_lock(lock)
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


def test_pylock_lists_every_file_with_location_and_hash(built: Path) -> None:
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


def test_incomplete_lock_is_refused(built: Path, lock: Resolution, capsys: Capture) -> None:
    del built
    write_lock(msgspec.structs.replace(lock, left_open=("torch: no index",)))
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 1
    assert "resolve nothing. The lock leaves to pip: torch: no index. To lock" in capsys.readouterr().err
    assert not Path("pylock.toml").exists()


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
    file = File("six-1.17.0-py3-none-any.whl", "https://files.example/six", "0" * 64, index="https://example")
    picks.append(locked_pick("six", "1.17.0", file))
    write_lock(msgspec.structs.replace(lock, picks=tuple(picks)))
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    data = read()
    assert [package["name"] for package in data["packages"]] == ["deepspeed", "six"]
    assert data["tool"]["matrix"]["kept"] == ["torch==2.13.0+cpu"]
    assert "because the base image has them: torch" in capsys.readouterr().err
