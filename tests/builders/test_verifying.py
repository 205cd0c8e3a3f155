"""Wheels of an index are compared with their provenance, with a lock, and with signatures by ssh-keygen."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.building.provenance import BUILD_TYPE
from builders.building.verifying import sign, verify
from builders.index import Index
from matrix.cli import main
from resolver.errors import UsageError
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


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Make two keys, of which the file of trusted keys has the first."""
    made = {name: tmp_path / name for name in ("trusted", "other")}
    for path in made.values():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    signers = tmp_path / "signers"
    signers.write_text(f"alice@site.example {made['trusted'].with_suffix('.pub').read_text()}")
    return made | {"signers": signers}


def ids(index: Index, **given: Any) -> list[str]:
    return [finding.id for finding in verify(index, **given).findings]


def test_sound_provenance_has_no_finding(index: Index) -> None:
    assert verify(index) == ([], [], {})


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
    assert verify(index) == ([], [added.name], {})


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


def test_signature_by_a_trusted_key_counts_and_others_do_not(index: Index, keys: dict[str, Path]) -> None:
    trusted = keys["signers"]
    assert ids(index, trusted=trusted) == ["signature-missing"]
    sign(index, keys["other"])
    assert ids(index, trusted=trusted) == ["signature-missing"]
    (name,) = sign(index, keys["trusted"])
    assert verify(index, trusted=trusted) == ([], [], {name: "alice@site.example"})


def test_changed_provenance_loses_its_signature(index: Index, keys: dict[str, Path]) -> None:
    sign(index, keys["trusted"])
    (path,) = index.provenance.iterdir()
    path.write_text(path.read_text().replace("2.9.1", "2.9.2"))
    assert ids(index, trusted=keys["signers"]) == ["signature-missing", "provenance-wrong"]


def test_signature_for_another_purpose_does_not_count(index: Index, keys: dict[str, Path]) -> None:
    """A signature of the same text, by the same key, that was made for files in general."""
    (path,) = index.provenance.iterdir()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(keys["trusted"]), str(path)]
    subprocess.run(command, check=True)
    index.signatures.mkdir()
    path.with_name(f"{path.name}.sig").rename(index.signatures / f"{path.name}.sig")
    assert ids(index, trusted=keys["signers"]) == ["signature-missing"]


def test_unusable_key_is_an_error_and_signs_nothing(index: Index, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key\n")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError, match="cannot sign"):
        sign(index, tmp_path / "key")
    assert not index.signatures.exists()


def test_command_signs_checks_and_removes(
    index: Index, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    at, signers = ["--index", str(index.root)], ["--signers", str(keys["signers"])]
    assert main(["index", "check", *at, *signers]) == 1
    assert "No trusted key has signed" in capsys.readouterr().out
    assert main(["index", "sign", *at, "--key", str(keys["trusted"])]) == 0
    assert main(["index", "check", *at, *signers]) == 0
    assert "Signed by alice@site.example: 1 wheel" in capsys.readouterr().out
    assert main(["index", "remove", "tiny", *at]) == 0
    assert not list(index.signatures.iterdir())
