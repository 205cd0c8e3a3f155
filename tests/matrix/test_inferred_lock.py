"""Commands work with a lock of a release that the catalog does not list."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from builders.building.plan import local_build_host, plan
from builders.index import Index
from builders.machine import host
from matrix.api import write_lock
from matrix.cli import main
from resolver.answers.resolve import resolve
from resolver.errors import LockError
from resolver.facts.catalog import load
from resolver.model import Request, Resolution, Target
from resolver.providers.inferred import with_releases_of
from resolver.requirements import parse_requirement
from tests.support.indexes import URL, FakeIndexes, FakeRelease

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolution:
    """Lock deepspeed 0.18.1 for this machine; the catalog lists only 0.17.6."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = Target(
        site="local",
        date=datetime.date(2026, 3, 1),
        backend="cpu",
        python=host.running_python(),
        glibc=host.glibc_version(),
    )
    indexes = FakeIndexes({"deepspeed": {"0.18.1": FakeRelease(sdist=True, wheels=())}})
    answer = resolve(load(), Request(target, (parse_requirement("deepspeed==0.18.1"),)), indexes)
    assert isinstance(answer, Resolution)
    write_lock(answer)
    return answer


def test_plan_has_the_recipe_of_the_release_below(lock: Resolution, tmp_path: Path) -> None:
    catalog, build_host = load(), local_build_host(host.running_python())
    (task,) = plan(lock, with_releases_of(catalog, lock), Index(tmp_path / "index"), build_host)
    assert task.title.startswith("deepspeed 0.18.1+cpu.torch")
    assert task.inputs["source"]["file"] == "deepspeed-0.18.1.tar.gz"
    assert task.recipe.must_contain == ("deepspeed/ops/adam/cpu_adam_op*.so",)
    with pytest.raises(LockError, match=r"the catalog has no recipe for it"):
        plan(lock, catalog, Index(tmp_path / "index"), build_host)


def test_build_wheels_plans_the_release(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["build-wheels", "deepspeed", "--dry-run", "--index", "index"]) == 0
    assert "deepspeed 0.18.1+cpu.torch" in capsys.readouterr().out


def test_explain_shows_inferred_facts_with_their_source(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["explain", "deepspeed", "-v"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("deepspeed 0.18.1: you asked for deepspeed==0.18.1 (inferred)\n")
    assert "  - deepspeed 0.18.1 is the sdist deepspeed-0.18.1.tar.gz [inferred]\n" in output.out
    assert "    note: Facts of deepspeed 0.17.6, the nearest release.\n" in output.out
    assert f"    source: {URL}/deepspeed/\n" in output.out
    assert "Cannot explain" not in output.err


def test_explain_json_has_status_and_source(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["explain", "deepspeed", "--format", "json"]) == 0
    (pick,) = json.loads(capsys.readouterr().out)["picks"]
    assert (pick["version"], pick["support"]) == ("0.18.1", "inferred")
    assert (pick["facts"][0]["status"], pick["facts"][0]["source"]) == ("inferred", f"{URL}/deepspeed/")


@pytest.mark.parametrize("command", [["explain", "--graph"], ["env", "--for", "pip", "-o", "out"]])
def test_other_commands_read_the_lock(lock: Resolution, command: list[str]) -> None:
    del lock
    assert main(command) == 0
