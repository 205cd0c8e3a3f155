"""Wheels that others compiled are audited when they are fetched, and rejected if they have errors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
SEEN = 'status = "observed"\nsource = "tests"\n'


class Elsewhere:
    """Facts about a package whose wheel is in a directory, which stands in for a GitHub release."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "release"

    def publish(self, wheel: Path, *rows: str) -> None:
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        pin = f'file = "{wheel.name}", sha256 = "{sha256}", url = "https://release.invalid/{wheel.name}"'
        (self.root / "facts.toml").write_text(
            f'schema = 1\n[[package]]\nname = "compiled"\ntitle = "Compiled elsewhere"\n{SEEN}'
            f'[[release]]\nversion = "1.0"\nbackend = ["cpu", "rocm"]\nwheels = [{{ {pin} }}]\n{SEEN}'
            + "".join(rows)
        )
        (self.root / "matrix.toml").write_text(
            f'catalog = ["facts.toml"]\n[mirrors]\n"https://release.invalid/" = "{self.wheels.as_uri()}/"\n'
        )

    def resolve(self, *arguments: str) -> None:
        assert main(["resolve", "compiled", "torch==2.9.1", "-q", *arguments]) == 0


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    return Elsewhere(tmp_path)


def fetched(capsys: Capture, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["farm", "fetch", "compiled", "--format", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def broken(wheel: Path) -> Path:
    """Rename a wheel, so that its name differs from its metadata."""
    return wheel.rename(wheel.with_name(wheel.name.replace("1.0", "1.1")))


def test_sound_wheel_is_fetched(elsewhere: Elsewhere, capsys: Capture) -> None:
    elsewhere.publish(tiny_wheel(elsewhere.wheels, "compiled", "1.0"))
    elsewhere.resolve("--backend", "cpu")
    (item,) = fetched(capsys)["sources"]
    assert (item["name"], item["state"], item["purpose"]) == ("compiled", "fetched", "install")


def test_wheel_with_errors_is_refused(elsewhere: Elsewhere, capsys: Capture) -> None:
    elsewhere.publish(broken(tiny_wheel(elsewhere.wheels, "compiled", "1.0")))
    elsewhere.resolve("--backend", "cpu")
    document = fetched(capsys, code=1)
    assert document["sources"] == []
    (item,) = document["missing"]
    assert (item["id"], "is not used" in item["message"]) == ("audit", True)
    assert "--no-prebuilt" in item["hint"]
    assert main(["build-wheels"]) == 1
    assert "is not used" in capsys.readouterr().err


def test_wheel_without_code_for_the_gpu_is_refused(elsewhere: Elsewhere, capsys: Capture) -> None:
    tags = "cp312-cp312-manylinux_2_28_x86_64"
    elsewhere.publish(tiny_wheel(elsewhere.wheels, "compiled", "1.0", tags=tags))
    elsewhere.resolve("--site", "lumi-g", "--python", "3.12")
    (item,) = fetched(capsys, code=1)["missing"]
    assert "contains no code for gfx90a" in item["message"]


def test_existing_lock_and_no_prebuilt_disagree(elsewhere: Elsewhere, capsys: Capture) -> None:
    elsewhere.publish(tiny_wheel(elsewhere.wheels, "compiled", "1.0"))
    elsewhere.resolve("--backend", "cpu")
    assert main(["build-wheels", "--no-prebuilt"]) == 2
    assert "Resolve again with --no-prebuilt" in capsys.readouterr().err
