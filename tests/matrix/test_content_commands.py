"""What the commands say about the content of wheels, and files that a lock excludes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli_w

from matrix import api
from matrix.cli import main
from matrix.commands import explain as explaining
from matrix.commands import resolve as resolving
from matrix.input.locking import exclude_file
from resolver.indexes import Content, ExcludedFile
from resolver.lock import digest_of, read_lock
from resolver.model import Resolution
from tests.support.indexes import FakeIndexes, FakeRelease

Capture = pytest.CaptureFixture[str]

LOCK = Path("matrix.lock")
SITE = ["--site", "lumi-g", "--date", "2026-03-01"]
PLAIN = Content("ext.so needs nothing of a GPU")
CUDA = Content("ext.so needs libcudart.so.12", cuda="required")
UNREAD = Content("ext.so has a suspicious name", unread="ext.so is larger than 40 MB")


def offer(monkeypatch: pytest.MonkeyPatch, contents: Mapping[str, Content]) -> None:
    """Let all commands use an index with releases of the project ``ext``, by version."""
    wheel = "cp312-cp312-manylinux_2_28_x86_64"
    releases = {version: FakeRelease(wheels=[wheel], content=one) for version, one in contents.items()}
    for module in (api, resolving, explaining):
        monkeypatch.setattr(module, "package_indexes", lambda *_: FakeIndexes({"ext": releases}))


def locked() -> Resolution:
    """Resolve ``ext`` as in this directory before, and return the lock."""
    assert main(["resolve", "ext", *SITE, "-q"]) == 0
    return read_lock(LOCK)


def test_excluded_file_stays_excluded(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    offer(monkeypatch, {"1.0": PLAIN, "2.0": PLAIN, "3.0": PLAIN})
    evidence = "requires CUDA: ext.so needs libcudart.so.12"
    excluded: tuple[ExcludedFile, ...] = ()
    for version in ("3.0", "2.0"):
        lock = locked()
        pick = lock.pick("ext")
        assert pick
        assert pick.version == version
        for _ in range(2):  # the second time changes nothing
            exclude_file(LOCK, "ext", pick.files[0].sha256, evidence)
        excluded = (*excluded, ExcludedFile("ext", version, pick.files[0].sha256, evidence))
        assert read_lock(LOCK).request.excluded == excluded
    capsys.readouterr()
    assert main(["resolve", "ext", *SITE]) == 0
    captured = capsys.readouterr()
    for version in ("3.0", "2.0"):
        assert f"ext {version} is excluded" in " ".join(captured.err.split())
    for _ in range(2):
        lock = locked()
        assert (lock.version_of("ext"), lock.request.excluded) == ("1.0", excluded)
    assert main(["explain", "ext==3.0"]) == 0
    assert evidence in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("key", "value"), [("name", "../ext"), ("sha256", "no hash"), ("version", "1 0")])
def test_lock_with_another_kind_of_exclusion_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, key: str, value: str
) -> None:
    """A lock comes from a stranger: an exclusion that is not one is an error, not a traceback."""
    offer(monkeypatch, {"1.0": PLAIN})
    locked()
    exclude_file(LOCK, "ext", "00", "requires CUDA")
    data = tomllib.loads(LOCK.read_text())
    data["request"]["excluded"][0][key] = value
    data["integrity"] = {"sha256": digest_of(data)}
    LOCK.write_text(tomli_w.dumps(data))
    capsys.readouterr()
    assert main(["explain"]) == 2
    assert f"request.excluded[0].{key}" in " ".join(capsys.readouterr().err.split())


def test_state_and_evidence_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    other = Content("ext.so contains code for AMD GPUs", gfx=("gfx1100",))
    offer(monkeypatch, {"1.0": PLAIN, "2.0": other})
    assert main(["resolve", "ext", *SITE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (pick,) = [pick for pick in document["picks"] if pick["name"] == "ext"]
    assert pick["content"] == {"state": "fits", "evidence": PLAIN.evidence}
    assert any(other.evidence in text for text in document["warnings"])
    assert main(["explain", "ext"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"its content fits: {PLAIN.evidence}" in shown
    assert f"2.0 contains code for gfx1100, but not for gfx90a: {other.evidence}" in shown


def test_one_line_says_what_is_not_judged(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    offer(monkeypatch, {"1.0": UNREAD})
    assert main(["resolve", "ext", *SITE]) == 0
    assert f"Not judged: ext ({UNREAD.unread})" in " ".join(capsys.readouterr().err.split())
    assert main(["explain", "ext"]) == 0
    assert f"its content was not judged: {UNREAD.unread}" in " ".join(capsys.readouterr().out.split())
