"""An index with several builds of one version: every command takes the one that the lock means."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from builders.index import Index
from builders.storage.files import sha256_of
from matrix.api import write_lock
from matrix.cli import main
from matrix.consumers import consumer_names, load_consumer
from resolver.lock import read_lock
from resolver.model import BaseImage
from tests.support.locks import local_file, locked_pick, with_image
from tests.support.projects import rows_of, write_catalog
from tests.support.records import provenance_of, record_of
from tests.support.tiny import tiny_index, wheel_of

Capture = pytest.CaptureFixture[str]
OTHER = "of other inputs"


TORCH = "2.13.0+cpu"
ON_TORCH = {"easybuild", "venv"}
"""Consumers that extend an image, and so need a torch in it."""


@pytest.fixture(params=["older", "newest"])
def meant(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Publish two builds of the version of a lock; return the wheel that the lock means."""
    return publish_two(tmp_path, is_newest=request.param == "newest")


@pytest.fixture(scope="module", params=["older", "newest"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Return the wheel that a lock means in a directory of its own; by whether the lock has a torch, too."""
    made = {}
    for with_torch in (False, True):
        folder = tmp_path_factory.mktemp("built")
        with contextlib.chdir(folder):
            made[with_torch] = publish_two(folder, is_newest=request.param == "newest", with_torch=with_torch)
    return made


def publish_two(folder: Path, *, is_newest: bool, with_torch: bool = False) -> Path:
    write_catalog(folder / "facts" / "fused.toml", [rows_of("fused", 64 * "a", ["setuptools"])])
    assert main(["resolve", "fused", "--backend", "cpu", "--catalog", "facts", "-q"]) == 0
    lock = read_lock(Path("matrix.lock"))
    other = tiny_index(folder / "other", {"helper": [("1.0", [])]}) / "simple"
    file = local_file(next(other.glob("helper/*.whl")), index=other.as_uri())
    picks = [*lock.picks, locked_pick("helper", "1.0", file, index=other.as_uri())]
    if with_torch:
        picks.append(
            replace(locked_pick("torch", TORCH), origin="preinstalled", index="https://index.example")
        )
    lock = with_image(replace(lock, picks=tuple(picks)), BaseImage(name="base", path="/images/base.sif"))
    write_lock(lock)
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        assert main(["farm", "plan", "--format", "json"]) == 0
    (task,) = json.loads(plan.getvalue())["tasks"]
    keys = [OTHER, task["key"]] if is_newest else [task["key"], OTHER]
    published = {key: publish(folder, task["version"], key, number) for number, key in enumerate(keys)}
    return published[task["key"]]


def publish(folder: Path, version: str, key: str, number: int) -> Path:
    """Publish a build; its module has the build key."""
    made = wheel_of(folder / "made", "fused", version, {"fused.py": f"KEY = {key!r}\n".encode()})
    if number:
        made = made.rename(made.with_name(made.name.replace("-py3", f"-{number}-py3")))
    return Index(folder / "index").publish(made, record_of(key))


@pytest.mark.parametrize(
    "consumer", [name for name in consumer_names() if not load_consumer(name).uses_environment]
)
def test_files_of_each_consumer_name_the_build_of_the_lock(
    consumer: str,
    built: dict[bool, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    meant = built[consumer in ON_TORCH]
    monkeypatch.chdir(meant.parents[3])
    assert main(["env", "--for", consumer, "-o", str(tmp_path)]) == 0, capsys.readouterr().err
    texts = [path.read_text() for path in tmp_path.iterdir()]
    (other,) = (path for path in meant.parent.glob("*.whl") if path != meant)
    assert any(quote(meant.name) in text or meant.name in text for text in texts)
    assert not any(quote(other.name) in text or other.name in text for text in texts)
    assert "not known" not in capsys.readouterr().err


def test_pip_installs_the_build_of_the_lock(meant: Path, tmp_path: Path) -> None:
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    assert installed(tmp_path / "requirements.txt", tmp_path / "site") == key_of(meant)


@pytest.mark.parametrize("meant", ["older"], indirect=True)  # which no installer would choose of both
def test_wheelhouse_has_only_the_build_of_the_lock(meant: Path, tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    for path in meant.parent.glob("*.whl"):  # of an earlier lock
        (wheelhouse / path.name).write_bytes(path.read_bytes())
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    assert [path.name for path in wheelhouse.glob("fused-*")] == [meant.name]
    assert sha256_of(wheelhouse / meant.name) == sha256_of(meant)
    assert main(["env", "--for", "pip", "--wheelhouse", "wheels", "-o", "requirements.txt"]) == 0
    assert installed(tmp_path / "requirements.txt", tmp_path / "site") == key_of(meant)


def test_unknown_build_is_not_chosen_silently(meant: Path, capsys: Capture) -> None:
    """The recipe has changed, so no wheel has the inputs of the lock."""
    rows = rows_of("fused", 64 * "a", ["setuptools", "wheel"])
    write_catalog(Path("facts/fused.toml"), [rows])
    assert main(["env", "--for", "pip"]) == 0
    output = capsys.readouterr()
    assert f"{meant.name.split('-')[0]}=={meant.name.split('-')[1]}" in output.out
    assert "2 builds of fused, and it is not known which of them the lock means" in output.err


def installed(requirements: Path, target: Path) -> str:
    """Install requirements with the real pip; return the build key in the module."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "-r", str(requirements)]
    env = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": target.as_uri()}
    subprocess.run(command, check=True, timeout=60, env=env)
    return str(runpy.run_path(str(target / "fused.py"))["KEY"])


def key_of(wheel: Path) -> str:
    provenance = provenance_of(Index(wheel.parents[2]), wheel)
    return str(provenance["predicate"]["buildDefinition"]["internalParameters"]["buildKey"])
