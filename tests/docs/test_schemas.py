"""The published JSON Schemas describe the output of the commands: real documents, validated strictly."""

from __future__ import annotations

import copy
import importlib
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.findings import Finding
from builders.index import Index
from matrix.cli import main
from resolver.errors import BuildError
from tests.builders.bundles import code_object
from tests.support.records import record_of

PROJECT = Path(__file__).parents[2]
SCHEMAS = PROJECT / "docs" / "reference" / "schemas"
Capture = pytest.CaptureFixture[str]
DAY = ("--date", "2026-02-01")
CPU = ("deepspeed", "torch==2.13.0", "--backend", "cpu")
KEPT = ("--keep-installed", "list.txt", "--site", "lumi-g")
LIMITS = ("--jobs", "8", "--memory", "8", "--cpu", "znver3")


def strict(schema: Any) -> Any:
    """Forbid keys that a schema does not list; the published schemas allow keys of later versions."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def validate(name: str, document: Any) -> None:
    from jsonschema import Draft202012Validator  # builds parsers for a second

    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    errors = Draft202012Validator(strict(schema)).iter_errors(document)
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []


@pytest.fixture
def printed(capsys: Capture) -> Callable[..., Any]:
    """Run a command with ``--format json``, validate its document against a schema, and return it."""

    def run(schema: str, *arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--format", "json"]) == code, capsys.readouterr().out
        document = json.loads(capsys.readouterr().out)
        assert list(document)[:2] in (["schema", "status"], ["status", "schema"])
        validate(schema, document)
        return document

    return run


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_schemas_are_valid_and_current() -> None:
    from jsonschema import Draft202012Validator

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "docs")
        schemas = importlib.import_module("documents").schemas()
    assert {path.name for path in SCHEMAS.glob("*.json")} == {path.name for path in schemas}
    for path, text in schemas.items():
        Draft202012Validator.check_schema(json.loads(text))
        assert path.read_text() == text, "run: nox -s docs"


def test_strict_schema_rejects_unknown_keys(printed: Callable[..., Any]) -> None:
    document = printed("catalog-list", "catalog", "list")
    with pytest.raises(AssertionError, match="extra"):
        validate("catalog-list", copy.deepcopy(document) | {"extra": 1})


@pytest.mark.slow
def test_documents_of_resolving(printed: Callable[..., Any]) -> None:
    conflict = ["resolve", "torch", "rocm==7.1.*", "--site", "lumi-g", *DAY]
    assert printed("conflict", *conflict, code=1)["suggestions"]
    printed("conflict", "explain")
    printed("error", "resolve", "apx", code=2)
    Path("list.txt").write_text("torch==2.7.1+rocm6.2.4\nrequests==2.32.3\n")
    kept = printed("resolve", "resolve", "torch", *KEPT, "--date", "2025-06-01")
    assert kept["target"]["kept"]["ignored"] == ["requests"]
    refused = printed("conflict", "resolve", "torch", *KEPT, "--date", "2026-02-01", "rocm==7.0.*", code=1)
    assert refused["target"]["kept"]["installed"]["requests"] == "2.32.3"
    printed("conflict", "explain")
    plan = ("build-container", "x.sif", "apex", "--site", "lumi-g", *DAY, "--dry-run")
    planned = printed("build-container", *plan, code=3)  # it names what is missing here
    assert planned["wheels"]
    assert printed("resolve", "resolve", "apex", "flash-attn[triton]", "--site", "lumi-g", *DAY)["edges"]
    printed("explain", "explain")
    assert printed("explain", "explain", "apex")["rejected"]
    assert printed("explain-graph", "explain", "--graph")["edges"]
    diff = ["diff", "--site", "lumi-g", *DAY, "--driver", "6.2"]
    assert printed("diff", *diff)["consequences"]
    table = ["table", "apex", "torch>=2.9", "--site", "lumi-g", *DAY]
    assert printed("table", *table)["rows"]
    printed("catalog-list-kind", "catalog", "list", "recipe")
    printed("catalog-check", "catalog", "check")
    Path("facts.toml").write_text("schema = 1\n[[nothing]]\n")
    printed("catalog-check", "catalog", "check", "facts.toml", code=1)
    Path("log").write_text("ModuleNotFoundError: No module named 'torch'\n")
    assert printed("check", "check", "log", code=1)["things"][0]["findings"]
    Path("env.yml").write_text("name: x\ndependencies:\n  - pip:\n    - torch=2.9.1\n")
    assert printed("check", "check", "env.yml", code=1)["things"][0]["findings"]
    Path("freeze.txt").write_text("torch==2.5.1+cu124\nnatten==0.21\n")
    assert printed("check", "check", "freeze.txt", *DAY, code=1)["things"][0]["changes"]


def _fail(*_: object, **__: object) -> None:
    error = BuildError("The build failed.")
    finding = Finding("no-python-header", "error", "Python.h is missing.")
    error.details = {"diagnosis": msgspec.to_builtins([finding]), "measured": {"jobs": 2, "memory_gib": 0.5}}
    raise error


@pytest.mark.slow
def test_documents_of_building(
    printed: Callable[..., Any], make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("resolve", "resolve", *CPU)
    (task,) = printed("farm-plan", "farm", "plan", *LIMITS)["tasks"]
    printed("build-wheels", "build-wheels", "--dry-run", *LIMITS)
    printed("farm-fetch", "farm", "fetch", "--offline", "--only-sources", code=3)
    wheel = make_wheel(name="deepspeed", version=task["version"])
    monkeypatch.setattr("builders.scheduling.local.build_wheel", lambda *_, **__: wheel)
    printed("farm-build-one", "farm", "build-one", task["key"], *LIMITS)
    results = printed("farm-build-one", "farm", "build-one", task["key"], task["key"][:16], *LIMITS)["tasks"]
    assert results[0]["state"] == "built"
    monkeypatch.setattr("builders.scheduling.local.build_wheel", _fail)
    assert printed("error", "farm", "build-one", task["key"], *LIMITS, code=1)["diagnosis"]
    Index("index").publish(wheel, record_of(task["key"]))
    printed("farm-builds", "farm", "builds")
    printed("check", "check")


def test_documents_of_wheels(printed: Callable[..., Any], make_wheel: Callable[..., Path]) -> None:
    wheel = make_wheel(files={"tiny/kernel.hsaco": code_object("gfx90a")})
    assert printed("check", "check", str(wheel), "--gfx90a")["things"][0]["wheels"]
    Path("index/simple").mkdir(parents=True)
    assert printed("index-add", "index", "add", str(wheel))["added"]
    assert printed("index-list", "index", "list")["wheels"]
    printed("index-check", "index", "check")
    Path("index/simple/tiny/index.html").write_text("damaged")
    assert printed("index-check", "index", "check", code=1)["findings"]
    assert printed("index-remove", "index", "remove", "tiny")["removed"]


def test_schemas_of_files_accept_what_the_program_reads() -> None:
    examples = re.findall(r"(?ms)^```toml\n(.*?)^```$", (PROJECT / "docs/reference/files.md").read_text())
    for path in (PROJECT / "resolver" / "facts").rglob("*.toml"):
        word, schema = path.read_text().partition("\n")[0].split()
        assert (word, (path.parent / schema).resolve()) == ("#:schema", SCHEMAS / "facts.toml.json"), path
    facts = [PROJECT / "resolver" / "facts" / name for name in ("sites/lumi-g.toml", "packages/apex.toml")]
    for name, texts in {"matrix.toml": examples, "facts.toml": [path.read_text() for path in facts]}.items():
        assert texts
        for text in texts:
            validate(name, json.loads(json.dumps(tomllib.loads(text), default=str)))
    with pytest.raises(AssertionError, match="requirments"):
        validate("matrix.toml", {"requirments": ["torch"]})
