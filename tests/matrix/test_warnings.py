"""Every warning that a command prints is also in its JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.learning import LearnedFacts
from matrix import api
from matrix.cli import main
from matrix.maintaining import site_file
from matrix.show.console import Console
from tests.support.indexes import FakeIndexes, FakeRelease

Capture = pytest.CaptureFixture[str]
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
CPU = ["--backend", "cpu", "--python", "3.12"]
IGNORED = ["-r", "ignored.txt"]
"""A requirements file with an option that matrix ignores."""


@pytest.fixture
def _inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Write the inputs of all commands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("ignored.txt").write_text("numpy\n--pre\n")
    Path("list.txt").write_text("numpy==2.0.0\n")
    Path("env.yml").write_text("dependencies:\n  - pip:\n    - numpy\n")
    projects = {"numpy": {"2.0.0": FakeRelease()}}
    monkeypatch.setattr(api, "package_indexes", lambda *_: FakeIndexes(projects))
    monkeypatch.setattr(
        site_file,
        "learn_machine",
        lambda *_: LearnedFacts(remarks=["No GPU was found.", "No Slurm was found."]),
    )
    assert main(["resolve", "numpy", "--site", "lumi-g", "--no-prebuilt", "-o", "other.lock", "-q"]) == 0
    assert main(["resolve", "numpy", *CPU, "-o", "numpy.lock", "-q"]) == 0
    capsys.readouterr()


def _wheel(make_wheel: Callable[..., Path]) -> str:
    return str(make_wheel("tiny", "1.0"))


COMMANDS: dict[str, list[str]] = {
    "resolve": ["resolve", *IGNORED, *CPU, "--no-lock"],
    "resolve, a conflict": ["resolve", *IGNORED, "torch==99", *CPU, "--no-lock"],
    "resolve, an error": ["resolve", *IGNORED, "--site", "nowhere", "--no-lock"],
    "table": ["table", *CPU],
    "build-wheels": ["build-wheels", *CPU, "--dry-run"],
    "diff": [
        "diff",
        "other.lock",
        "--site",
        "archer2-cpu",
        "--from-date",
        "2026-01-01",
        "--date",
        "2026-06-01",
    ],
    "catalog learn": ["catalog", "learn", "WHEEL"],
    "catalog site": ["catalog", "site", "--name", "here"],
}

OF_SETTINGS = {"table", "build-wheels"}
"""Commands that read requirements files only from ``matrix.toml``."""


def run(capsys: Capture, arguments: list[str]) -> tuple[str, list[str]]:
    """Run a command; return its output and the warnings on stderr."""
    main(arguments)
    output = capsys.readouterr()
    return output.out, re.findall(r"^warning: (.+)", output.err, re.MULTILINE)


@pytest.mark.usefixtures("_inputs")
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_warnings_are_the_same_in_text_and_json(
    arguments: list[str], make_wheel: Callable[..., Path], capsys: Capture
) -> None:
    if arguments[0] in OF_SETTINGS:
        Path("matrix.toml").write_text('requirement-files = ["ignored.txt"]\nkeep-installed = "list.txt"\n')
    arguments = [_wheel(make_wheel) if word == "WHEEL" else word for word in arguments]
    _, in_text = run(capsys, arguments)
    Path("here.toml").unlink(missing_ok=True)
    out, on_stderr = run(capsys, [*arguments, "--format", "json"])
    assert in_text
    assert on_stderr == in_text
    assert [warning.partition("\n")[0] for warning in json.loads(out)["warnings"]] == in_text


@pytest.mark.parametrize(
    "schema",
    [path for path in sorted(SCHEMAS.glob("*.json")) if ".toml" not in path.name],
    ids=lambda path: path.stem,
)
def test_every_document_has_warnings(schema: Path) -> None:
    document: dict[str, Any] = json.loads(schema.read_text())
    options = document.get("anyOf", [document])
    for option in options:
        reference = option.get("$ref", "").rpartition("/")[2]
        assert "warnings" in (document["$defs"][reference] if reference else option)["properties"]


@pytest.mark.usefixtures("_inputs")
def test_document_contains_each_warning_once(capsys: Capture) -> None:
    from matrix.show.json_document import JsonDocument

    console = Console()
    for message in ("one", "two", "one"):
        console.warning(message)
    console.document(JsonDocument(status="ok", warnings=["zero", "two"]))
    assert json.loads(capsys.readouterr().out)["warnings"] == ["zero", "two", "one"]
