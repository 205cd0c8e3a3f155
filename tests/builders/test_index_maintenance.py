"""Maintenance of an index: wheels are removed and yanked; damage is reported and repaired."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pypi_simple import DistributionPackage, ProjectPage

from builders.index import Index
from builders.index.maintenance import (
    check,
    misplaced,
    prunable,
    remove,
    select,
    unyank,
    yank,
)
from builders.storage.files import sha256_of
from resolver.errors import MatrixError, UsageError
from tests.support.errors import has_id

MakeWheel = Callable[..., Path]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the index that all tests copy; the first one creates it."""
    return tmp_path_factory.mktemp("published") / "index"


@pytest.fixture
def index(tmp_path: Path, make_wheel: MakeWheel, published: Path) -> Index:
    """Return an index with two versions of one project and one of another."""
    if not published.exists():
        for name, version in (("tiny", "1.0"), ("tiny", "2.0"), ("other", "1.0")):
            Index(published).publish(make_wheel(name, version), {"build_key": f"{name}-{version}"})
    return Index(shutil.copytree(published, tmp_path / "index"))


def page_of(index: Index, project: str) -> ProjectPage:
    """Read a project's page with an independent reader."""
    text = (index.simple / project / "index.html").read_text()
    return ProjectPage.from_html(project, text, base_url="file:///x/")


def links_of(index: Index, project: str) -> dict[str, DistributionPackage]:
    return {link.filename: link for link in page_of(index, project).packages}


def put(index: Index, wheel: Path, target: Path) -> None:
    """Copy a wheel and write a record for it, as a publisher does before the pages."""
    shutil.copy(wheel, target)
    (index.provenance / f"{target.name}.{sha256_of(wheel)[:16]}.json").write_text("{}")


def ids(index: Index, *, repair: bool = False) -> list[str]:
    return [finding.id for finding in check(index, repair=repair)]


def test_check_fresh_index_has_no_findings(index: Index) -> None:
    assert check(index) == []
    assert check(Index(index.root / "nothing")) == []


def test_select_by_project_version_or_file(index: Index) -> None:
    older, newer = index.wheels("tiny")
    assert select(index, "tiny") == [older, newer]
    assert select(index, "Tiny==2.0") == [newer]
    assert select(index, older.name) == [older]
    with pytest.raises(UsageError, match="no wheel 'tny'") as caught:
        select(index, "tny")
    assert caught.value.hint == "Did you mean tiny?"


def test_remove_deletes_wheel_and_its_files(index: Index) -> None:
    older, newer = index.wheels("tiny")
    yank(index, [newer], "broken")
    remove(index, [newer])
    assert index.wheels("tiny") == [older]
    assert list(links_of(index, "tiny")) == [older.name]
    assert not [path for path in index.root.rglob("*") if "2.0" in path.name]
    assert check(index) == []
    remove(index, [older])
    assert index.projects() == ["other"]
    assert check(index) == []


def test_remove_killed_midway_can_be_repeated(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the worst moment, a wheel that still exists is missing from its page, which misleads no reader."""
    older, newer = index.wheels("tiny")

    unlink = Index.unlink

    def die(of: Index, path: Path) -> None:
        if path.parent == of.yanked:
            raise KeyboardInterrupt
        unlink(of, path)

    with monkeypatch.context() as dying:
        dying.setattr(Index, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            remove(index, [newer])
    assert list(links_of(index, "tiny")) == [older.name]
    remove(index, select(index, "tiny==2.0"))
    assert check(index) == []


def test_yank_shows_reason_on_page(index: Index) -> None:
    older, newer = index.wheels("tiny")
    yank(index, [older], "wrong <wave> size")
    yank(index, [newer], "")
    links = links_of(index, "tiny")
    assert (links[older.name].is_yanked, links[older.name].yanked_reason) == (True, "wrong <wave> size")
    assert (links[newer.name].is_yanked, links[newer.name].yanked_reason) == (True, "")
    assert check(index) == []
    unyank(index, [older])
    assert links_of(index, "tiny")[older.name].is_yanked is False
    assert links_of(index, "tiny")[newer.name].is_yanked is True


def test_publish_keeps_yanked_wheels_yanked(index: Index, make_wheel: MakeWheel) -> None:
    older, _ = index.wheels("tiny")
    yank(index, [older], "broken")
    (index.simple / "tiny" / "index.json").unlink()
    index.publish(make_wheel("tiny", "3.0"), {})
    assert links_of(index, "tiny")[older.name].yanked_reason == "broken"


@pytest.mark.parametrize("page", ["tiny/index.html", "tiny/index.json", "index.html", "index.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "hash"])
def test_check_wrong_page_is_rebuilt(index: Index, page: str, damage: str) -> None:
    path = index.simple / page
    before = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(before[:-20])
    elif "tiny" in page:
        digest = before.partition(b"sha256")[2][:70]
        path.write_bytes(before.replace(digest, digest.translate(bytes.maketrans(b"0123", b"3210"))))
    else:
        path.write_bytes(before.replace(b"tiny", b"tony"))
    assert set(ids(index)) == {"page-wrong"}
    assert set(ids(index, repair=True)) == {"page-wrong"}
    assert path.read_bytes() == before
    assert check(index) == []


def test_check_changed_wheel_is_moved_away(index: Index, make_wheel: MakeWheel) -> None:
    older, newer = index.wheels("tiny")
    other = make_wheel("tiny", "2.0", files={"tiny.py": b"ANSWER = 43\n"}, folder="other")
    newer.write_bytes(other.read_bytes())
    assert ids(index) == ["wheel-changed"]
    assert newer.exists()
    check(index, repair=True)
    assert (index.state / "damaged" / newer.name).read_bytes() == other.read_bytes()
    assert index.wheels("tiny") == [older]
    assert list(links_of(index, "tiny")) == [older.name]


@pytest.mark.parametrize("keep", [0, 100])
def test_check_truncated_wheel_is_found(index: Index, keep: int) -> None:
    _, newer = index.wheels("tiny")
    newer.write_bytes(newer.read_bytes()[:keep])
    assert ids(index) == ["wheel-unreadable"]
    check(index, repair=True)
    assert check(index) == []


def test_check_wheel_with_wrong_name_is_found(index: Index, make_wheel: MakeWheel) -> None:
    made = make_wheel("tiny", "3.0")
    put(index, made, index.simple / "tiny" / "tiny-4.0-py3-none-any.whl")
    stray = make_wheel("stray", "1.0")
    put(index, stray, index.simple / "tiny" / stray.name)
    index.refresh("tiny")
    misnamed = {
        finding.evidence["path"].rpartition("/")[2]: finding
        for finding in check(index)
        if finding.id == "wheel-misnamed"
    }
    assert set(misnamed) == {"tiny-4.0-py3-none-any.whl", stray.name}
    assert "version 3.0" in misnamed["tiny-4.0-py3-none-any.whl"].message


def test_check_removes_only_abandoned_files(index: Index, make_wheel: MakeWheel) -> None:
    fresh, dead = index.simple / "tiny" / ".tmp-fresh.whl", index.simple / "tiny" / ".tmp-dead.whl"
    gone = make_wheel("gone", "1.0")
    record = index.provenance / f"{gone.name}.0123456789abcdef.json"
    for path in (fresh, dead, record):
        path.write_text("{}")
    long_ago = time.time() - 7200
    for path in (dead, record):
        os.utime(path, (long_ago, long_ago))
    assert sorted(ids(index, repair=True)) == ["leftover", "record-without-wheel"]
    assert fresh.exists()
    assert not dead.exists()
    assert not record.exists()


def test_prunable_keeps_pinned_highest_build_tag(index: Index, make_wheel: MakeWheel) -> None:
    again = make_wheel("tiny", "2.0", files={"tiny.py": b"again"}, folder="again")
    newest = index.publish(again.rename(again.with_name("tiny-2.0-1-py3-none-any.whl")), {})
    names = {"tiny": ["2.0"]}
    now = datetime.now(tz=UTC)
    removable = prunable(index, pinned=names, older_than=None, now=now)
    assert {path.name for path in removable} == {
        "tiny-1.0-py3-none-any.whl",
        "tiny-2.0-py3-none-any.whl",
        "other-1.0-py3-none-any.whl",
    }
    assert newest not in removable
    assert prunable(index, pinned=names, older_than=timedelta(days=1), now=now) == []
    later = now + timedelta(days=2)
    assert prunable(index, pinned=names, older_than=timedelta(days=1), now=later) == removable
    assert len(prunable(index, pinned=None, older_than=timedelta(days=1), now=later)) == 4


@pytest.mark.parametrize("case", ["same", "other", "new"])
def test_check_merges_misnamed_directory_safely(index: Index, make_wheel: MakeWheel, case: str) -> None:
    """Only files in the wrong directory are moved, and a second check has no findings."""
    older, newer = good = index.wheels("tiny")
    before = [path.read_bytes() for path in good]
    wrong = index.simple / "TINY"
    shutil.copytree(index.simple / "tiny", wrong, ignore=shutil.ignore_patterns("*.whl"))
    stray = {
        "same": older,
        "other": make_wheel("tiny", "1.0", files={"tiny.py": b"ANSWER = 43\n"}, folder="other"),
        "new": make_wheel("tiny", "3.0"),
    }[case]
    put(index, stray, wrong / stray.name)
    index.refresh_all()
    assert index.projects() == ["other", "tiny"]
    assert "TINY" not in (index.simple / "index.html").read_text()

    (finding,) = check(index)
    assert (finding.id, finding.evidence["path"]) == ("folder-misnamed", "simple/TINY")
    assert "simple/tiny" in finding.message
    repaired = check(index, repair=True)[0]
    assert repaired.id == "folder-misnamed"
    assert repaired.evidence["repaired"]
    assert [path.read_bytes() for path in good] == before
    assert not wrong.exists()
    assert [path.name for path in index.wheels("tiny")] == [
        older.name,
        newer.name,
        *([stray.name] if case == "new" else []),
    ]
    aside = sorted(path.name for path in (index.state / "damaged").glob("*"))
    assert aside == ([older.name] if case == "other" else [])
    assert check(index, repair=True) == []
    assert check(index) == []


def test_check_misnamed_link_is_unlinked(index: Index) -> None:
    (index.simple / "Tiny").symlink_to("tiny")
    assert ids(index) == ["file-irregular"]
    check(index, repair=True)
    assert len(index.wheels("tiny")) == 2
    assert not (index.simple / "Tiny").is_symlink()
    assert check(index) == []


@pytest.mark.parametrize("name", ["foo.whl", "tiny-bad version-py3-none-any.whl"])
def test_check_invalid_wheel_name_is_found(index: Index, name: str) -> None:
    (index.simple / "tiny" / name).write_bytes(b"what")
    assert ids(index) == ["wheel-misnamed"]
    assert ids(index, repair=True) == ["wheel-misnamed"]
    assert (index.state / "damaged" / name).read_bytes() == b"what"
    assert check(index) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory"])
def test_check_irregular_wheel_is_found(index: Index, make_wheel: MakeWheel, kind: str) -> None:
    path = index.simple / "tiny" / "tiny-3.0-py3-none-any.whl"
    if kind == "link":
        path.symlink_to(make_wheel("tiny", "3.0"))
    elif kind == "dangling":
        path.symlink_to("/nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert ids(index) == ["wheel-irregular"]
    assert set(ids(index, repair=True)) == {"wheel-irregular"}
    assert not os.path.lexists(path)
    assert os.path.lexists(index.state / "damaged" / path.name)
    assert check(index) == []


def test_check_ignores_concurrent_removal(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*index.wheel_names("tiny"), "tiny-3.0-py3-none-any.whl"]
    monkeypatch.setattr(index, "wheel_names", lambda project: names if project == "tiny" else [])
    assert list(misplaced(index, repair=True)) == []


def test_check_keeps_damaged_files_of_same_name(index: Index) -> None:
    path = index.simple / "tiny" / "foo.whl"
    for text in ("one", "two"):
        path.write_text(text)
        check(index, repair=True)
    assert {file.read_text() for file in (index.state / "damaged").iterdir()} == {"one", "two"}


@pytest.mark.parametrize("page", ["index.html", "index.json", "tiny/index.html", "tiny/index.json"])
def test_check_directory_instead_of_page_is_moved(index: Index, page: str) -> None:
    path = index.simple / page
    before = path.read_bytes()
    path.unlink()
    path.mkdir()
    assert set(ids(index)) == {"page-wrong"}
    with pytest.raises(MatrixError, match="is a directory", check=has_id("index-damaged")) as caught:
        index.refresh_all()
    assert "--repair" in caught.value.hint
    check(index, repair=True)
    assert path.read_bytes() == before
    assert check(index) == []


def test_check_removes_pages_of_empty_project(index: Index) -> None:
    (wheel,) = index.wheels("other")
    wheel.unlink()
    findings = [
        finding
        for finding in check(index, repair=True)
        if finding.evidence["path"].startswith("simple/other")
    ]
    assert {(finding.id, finding.evidence["repaired"]) for finding in findings} == {("page-wrong", "removed")}
    assert all("does not match the files" in finding.message for finding in findings)
    assert not list((index.simple / "other").iterdir())


def test_prunable_without_page_uses_file_time(index: Index) -> None:
    (index.simple / "tiny" / "index.json").unlink()
    later = datetime.now(tz=UTC) + timedelta(days=2)
    assert len(prunable(index, pinned=None, older_than=timedelta(days=1), now=later)) == 3


def test_check_finds_changed_wheel_of_any_size(index: Index) -> None:
    older, newer = index.wheels("tiny")
    os.utime(older, (0, 0))  # as in a copy: another time, the same content
    newer.write_bytes(newer.read_bytes()[:-1] + b"x")
    os.utime(newer, (0, 0))
    changed = ("wheel-changed", f"simple/tiny/{newer.name}")
    assert [(finding.id, finding.evidence["path"]) for finding in check(index)] == [changed]
    newer.write_bytes(newer.read_bytes() + b"x")
    assert [(finding.id, finding.evidence["path"]) for finding in check(index)] == [changed]
