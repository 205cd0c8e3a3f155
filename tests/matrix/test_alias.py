"""Commands with a lock that has an alias: a wheel that only requires the triton of torch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import matrix
from builders.audit.wheel_audit import audit_wheel
from builders.building.plan import BuildHost, Task, plan
from builders.building.provenance import read_statement
from builders.index import Index
from matrix.api import write_lock
from matrix.cli import main
from matrix.input.settings import Settings, load_catalog
from matrix.show.resolution_text import resolution_text
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.support.aliases import ALIAS, OWN, PINNED, lock_with_alias
from tests.support.records import provenance_of
from tests.support.tasks import make_host, make_recipe

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    write_lock(lock_with_alias(tmp_path / "files"), tmp_path / "matrix.lock")
    return tmp_path


def states(capsys: Capture, *arguments: str) -> dict[str, str]:
    capsys.readouterr()
    assert main(["build-wheels", "--format", "json", *arguments]) == 0
    return {wheel["name"]: wheel["state"] for wheel in json.loads(capsys.readouterr().out)["wheels"]}


def test_alias_is_built_without_programs_and_only_once(work: Path, capsys: Capture) -> None:
    assert states(capsys, "--dry-run") == {"triton": "to build"}
    assert not (work / "index").exists()
    assert states(capsys) == {"triton": "built"}
    assert states(capsys) == {"triton": "up to date"}
    assert [path.name for path in Index("index").wheels("triton")] == [ALIAS]
    assert main(["index", "check"]) == 0
    assert main(["index", "prune", "--lock", "matrix.lock"]) == 0
    assert len(Index("index").wheels("triton")) == 1


def test_alias_contains_one_requirement(work: Path, capsys: Capture) -> None:
    states(capsys)
    wheel = work / "index" / "simple" / "triton" / ALIAS
    with zipfile.ZipFile(wheel) as archive:
        info = f"triton-{PINNED}.dist-info"
        assert archive.namelist() == [f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD")]
        metadata = archive.read(f"{info}/METADATA").decode()
    assert "Summary: Alias of pytorch-triton-rocm, the triton of torch 2.9.1+rocm6.4." in metadata
    assert metadata.endswith(f"Requires-Dist: {OWN}==3.5.1\n")
    audit = audit_wheel(wheel)
    assert audit.errors == []
    (subject,) = read_statement(provenance_of(Index("index"), wheel)).subject
    assert (subject.name, subject.digest) == (ALIAS, {"sha256": audit.sha256})


@pytest.mark.usefixtures("work")
def test_alias_has_the_same_bytes_everywhere(capsys: Capture) -> None:
    states(capsys, "--index", "one")
    states(capsys, "--index", "two")
    one, two = (Index(name).wheels("triton")[0].read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.usefixtures("work")
def test_rebuilt_alias_is_compared(tmp_path: Path, capsys: Capture) -> None:
    rebuild = ["build-wheels", "triton", "--rebuild"]
    assert main(rebuild) == 2
    assert "has no wheel of triton 3.5.1" in capsys.readouterr().err
    states(capsys)
    assert main(rebuild) == 0
    assert "identical: a rebuild has the same bytes" in capsys.readouterr().out

    index = Index("index")
    wheel = index.wheels("triton")[0]
    record = provenance_of(index, wheel)
    planted = wheel.rename(tmp_path / wheel.name)
    with zipfile.ZipFile(planted, "a") as archive:
        archive.writestr("triton/planted.py", "")
    index.publish(planted, record)
    assert main([*rebuild, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "failed"
    (row,) = document["wheels"]
    assert row["state"] == "different"
    assert [one["message"] for one in row["diagnosis"]] == [
        "triton/planted.py: only the published wheel has this member."
    ]
    assert wheel.read_bytes() == planted.read_bytes()


def test_api_builds_the_alias(work: Path) -> None:
    (path,) = matrix.build(matrix.read_lock("matrix.lock"), Index(work / "index"))
    assert path.name == ALIAS


@pytest.mark.usefixtures("work")
def test_fetch_has_nothing_to_do_for_an_alias(capsys: Capture) -> None:
    assert main(["farm", "fetch", "triton", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["missing"], document["sources"]) == ([], [])


@pytest.mark.usefixtures("work")
def test_graph_has_the_alias(capsys: Capture) -> None:
    assert main(["explain", "--graph"]) == 0
    assert "── triton 3.5.1" in capsys.readouterr().out


@pytest.mark.usefixtures("work")
def test_explain_lists_no_other_versions_of_an_alias(capsys: Capture) -> None:
    assert main(["explain", "triton"]) == 0
    assert "Not chosen" not in capsys.readouterr().out


@pytest.mark.parametrize("built", [False, True])
def test_env_pins_the_alias_and_leaves_nothing_open(work: Path, capsys: Capture, *, built: bool) -> None:
    if built:
        states(capsys)
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    lines = (work / "requirements.txt").read_text().splitlines()
    pins = [line.partition(" --hash=sha256:") for line in lines if "==" in line]
    assert {pin for pin, _, _ in pins} >= {f"triton=={PINNED}", f"{OWN}==3.5.1"}
    assert all(bool(digest) == built for _, _, digest in pins)
    assert "leaves to pip" not in capsys.readouterr().err


def test_wheelhouse_contains_the_alias(work: Path, capsys: Capture) -> None:
    states(capsys)
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    assert (work / "wheels" / ALIAS).exists()


def test_text_names_the_alias(work: Path) -> None:
    lock = read_lock(work / "matrix.lock")
    assert f"triton 3.5.1 (alias of {OWN})" in resolution_text(lock, {})
    (row,) = [line for line in resolution_text(lock, {}, every=True).splitlines() if "alias" in line]
    assert row.split()[:5] == ["triton", "3.5.1", "alias", "of", OWN]


def test_wheels_that_we_build_require_the_triton_of_torch(work: Path) -> None:
    lock = read_lock(work / "matrix.lock")
    task = Task(lock.built()[0], make_recipe(), make_host(), lock)
    assert task.runtime_versions == {"torch": "2.9.1+rocm6.4", OWN: "3.5.1"}


def test_build_key_is_that_of_the_requirement(work: Path) -> None:
    def key(lock: Resolution, host: BuildHost) -> str:
        (task,) = plan(lock, load_catalog(Settings()), Index(work / "index"), host)
        return task.build_key

    lock = read_lock(work / "matrix.lock")
    assert key(lock, make_host()) == key(lock, make_host(identity={"runtime": "another"}))


@pytest.mark.usefixtures("work")
def test_check_accepts_the_alias_beside_torch_s_triton(capsys: Capture) -> None:
    """A lock with an alias, and its files, have two tritons, of which one is empty."""
    main(["check", "matrix.lock"])
    assert "the catalog has no triton" not in capsys.readouterr().out
    Path("alone.txt").write_text(f"torch==2.9.1+rocm6.4\ntriton=={PINNED}\ntriton==3.5.1\n")
    main(["check", "alone.txt", "--site", "lumi-g", "--offline", "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    assert [one["evidence"]["text"] for one in findings if one["id"] == "second-triton"] == ["triton==3.5.1"]
