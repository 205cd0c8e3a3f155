"""Output stays short when a lock has hundreds of distributions that come only from package indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.index import Index
from matrix.api import write_lock
from matrix.cli import main
from matrix.show.resolution_text import resolution_text
from resolver.indexes import File
from resolver.model import Edge, Fact, Resolution
from tests.support.commands import bare_environment
from tests.support.locks import built_pick, lock_of, locked_pick
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
OTHERS = "and 200 other packages from package indexes (-v lists them)"


def file(name: str, version: str = "1.0") -> File:
    wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return File(wheel, f"https://x.example/{wheel}", sha256="0" * 64, index="https://x.example/simple")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolution:
    """Write a lock with torch, a wheel that we build, a requested project, and 200 others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fact = Fact("torch 2.13.0 is published", "observed", "an index", file="resolver/facts/torch.toml")
    names = [f"other-{number:03}" for number in range(200)]
    made = lock_of(
        built_pick("apex", wheel_version="1.0+cpu"),
        locked_pick("torch", "2.13.0+cpu", file("torch", "2.13.0+cpu"), facts=(fact,)),
        locked_pick("lightning", "1.0", file("lightning")),
        *(locked_pick(name, "1.0", file(name)) for name in names),
        requested=("apex", "lightning"),
        order=(tuple(names), ("lightning", "torch"), ("apex",)),
        edges=(
            Edge("apex", "torch", "run", declared=True),
            *(Edge("lightning", name, "run", declared=True) for name in names),
        ),
    )
    write_lock(made)
    return made


def test_resolution_counts_the_others(lock: Resolution) -> None:
    text = resolution_text(lock, {})
    assert "200 other packages (-v lists them)" in text
    assert "other-" not in text
    for listed in ("Python", "torch", "apex", "lightning"):
        assert f" {listed} " in text
    assert len(text.splitlines()) < 10
    assert resolution_text(lock, {}, every=True).count("\n  other-") == 200


@pytest.mark.parametrize("command", [["explain"], ["explain", "--graph"]])
def test_commands_count_the_others(lock: Resolution, capsys: Capture, command: list[str]) -> None:
    del lock
    assert main(command) == 0
    output = capsys.readouterr()
    assert OTHERS in output.out + output.err
    assert "other-" not in output.out
    assert "lightning" in output.out
    assert main([*command, "-v"]) == 0
    assert "other-199" in capsys.readouterr().out


def test_named_distribution_is_shown_with_its_needs(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["explain", "--graph", "lightning"]) == 0
    assert "other-199" in capsys.readouterr().out
    assert main(["explain", "other-007"]) == 0
    assert "other-007 1.0: (inferred)" in capsys.readouterr().out


def test_json_has_everything(lock: Resolution, capsys: Capture) -> None:
    del lock
    for command in (["explain"], ["explain", "--graph"]):
        assert main([*command, "--format", "json"]) == 0
        assert "other-199" in capsys.readouterr().out


def test_verify_lists_few_findings_of_one_kind(lock: Resolution, capsys: Capture) -> None:
    del lock
    bare_environment(Path("env"))
    assert main(["check", "env/bin/python", "--run"]) == 1
    output = capsys.readouterr().out
    assert output.count("is not installed. [verify-pin-missing]") == 10
    assert "There are 193 more findings of this kind." in output
    assert main(["check", "env/bin/python", "--run", "--format", "json"]) == 1
    ids = [finding["id"] for finding in json.loads(capsys.readouterr().out)["things"][0]["findings"]]
    assert ids.count("verify-pin-missing") == 203


def test_missing_files_are_counted(lock: Resolution, capsys: Capture) -> None:
    del lock
    wheel = tiny_wheel(Path("made"), "apex", "1.0+cpu")
    Index(Path("index")).publish(wheel, {"build_key": "x"})
    assert main(["farm", "fetch", "--wheelhouse", "wheels", "--offline"]) == 3
    output = capsys.readouterr()
    assert output.err.count("error: ") == 11
    assert "Not shown: 192 more." in output.err
    assert "0 fetched (0 B), 0 cached, 202 missing" in output.out
    assert main(["env", "--for", "pip", "--wheelhouse", "wheels"]) == 1
    assert "has no file for" in (error := capsys.readouterr().err)
    assert "and 197 more" in error
