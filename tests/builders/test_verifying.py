"""Wheels of an index are compared with their provenance, and with a lock."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.building.provenance import BUILD_TYPE
from builders.building.verifying import verify
from builders.index import Index
from resolver.facts.schema import Sdist
from resolver.model import Request, Resolution, Target
from tests.support.locks import built_pick
from tests.support.records import record_of

MakeWheel = Callable[..., Path]
INPUTS = {"source": "a", "torch": "2.9.1"}
KEY = hashlib.sha256(json.dumps(INPUTS, sort_keys=True).encode()).hexdigest()


@pytest.fixture
def wheel(make_wheel: MakeWheel) -> Path:
    return make_wheel("tiny", "1.0")


def record(wheel: Path, inputs: dict[str, str] = INPUTS) -> dict[str, Any]:
    document = record_of(KEY, wheel)
    definition = document["predicate"]["buildDefinition"]
    definition["buildType"] = BUILD_TYPE
    definition["internalParameters"]["inputs"] = inputs
    return document


@pytest.fixture
def index(tmp_path: Path, wheel: Path) -> Index:
    made = Index(tmp_path / "index")
    made.publish(wheel, record(wheel))
    return made


def test_sound_provenance_has_no_finding(index: Index) -> None:
    assert verify(index) == ([], [])


def test_provenance_of_another_file_or_of_other_inputs_is_wrong(
    tmp_path: Path, wheel: Path, make_wheel: MakeWheel
) -> None:
    index = Index(tmp_path / "index")
    index.publish(wheel, record(make_wheel("tiny", "2.0")))
    (finding,) = verify(index).findings
    assert "is about another file" in finding.message
    second = Index(tmp_path / "second")
    second.publish(wheel, record(wheel, {**INPUTS, "torch": "2.10.0"}))
    (finding,) = verify(second).findings
    assert "has a build key that is not the digest of its inputs" in finding.message


@pytest.mark.parametrize("text", ["", "5", "null", "[]", "{", "[" * 100_000])
def test_damaged_provenance_is_a_finding(index: Index, text: str) -> None:
    (path,) = index.provenance.iterdir()
    path.write_text(text)
    (finding,) = verify(index).findings
    assert finding.id == "provenance-wrong"
    assert "tiny-1.0-py3-none-any.whl cannot be read" in finding.message


def test_added_wheel_is_named_and_no_error(index: Index, make_wheel: MakeWheel) -> None:
    added = make_wheel("added", "1.0")
    index.publish(added, {"added": "2026-11-28T00:00:00Z", "findings": []})
    assert verify(index) == ([], [added.name])


@pytest.mark.parametrize(
    ("version", "source", "said"),
    [
        ("1.0", "a", ""),
        ("1.1", "a", "The index has no wheel of tiny 1.1"),
        ("1.0", "b", "No wheel of tiny 1.0 was built from the source that the lock pins: bbbbbbbbbbbb"),
    ],
)
def test_lock_names_a_built_version_and_its_source(
    wheel: Path, tmp_path: Path, version: str, source: str, said: str
) -> None:
    document = record(wheel)
    definition = document["predicate"]["buildDefinition"]
    definition["externalParameters"] = {"name": "tiny", "version": "1.0"}
    part = {"name": "tiny-1.0.tar.gz", "digest": {"sha256": "a" * 64}, "annotations": {"role": "source"}}
    definition["resolvedDependencies"] = [part]
    index = Index(tmp_path / "index")
    index.publish(wheel, document)
    pick = built_pick("tiny", wheel_version=version, sdist=Sdist("tiny-1.0.tar.gz", source * 64))
    target = Target(site="local", date=datetime.date(2026, 11, 28), backend="cpu")
    lock = Resolution(request=Request(target), target=target, picks=(pick,))
    found = verify(index, lock).findings
    assert [finding.message.startswith(said) for finding in found] == ([True] if said else [])
