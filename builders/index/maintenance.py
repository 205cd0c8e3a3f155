"""Maintenance of an index: check and repair it, remove, yank and prune wheels.

Damage is reported as `Finding`. Its evidence has ``path``, relative to the index, and ``repaired``, the
repair that was made (empty for none).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.parser import BytesHeaderParser
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name, is_normalized_name, parse_wheel_filename
from packaging.version import Version

from builders.findings import Finding
from builders.index.access import is_regular, sha256_of_regular
from builders.index.pages import (
    JSON_PAGE,
    PAGE,
    WheelEntry,
    entry_of,
    is_wheel,
    metadata_of,
    upload_time,
)
from builders.index.repository import STATE_DIRECTORIES, Index, record_name, wheel_of
from builders.storage.files import ABANDONED, TEMPORARY_PREFIX, remove_tree
from builders.storage.lease import link_exclusively
from resolver.errors import MatrixError, UsageError, did_you_mean
from resolver.versions import grouped, shorten, version_or_none

if TYPE_CHECKING:
    from builders.audit.wheel_audit import WheelAudit

_NOT_REPAIRED = {"wheel-without-record"}
_ADOPT = "If you know where it comes from, run `matrix index add` with its path; otherwise remove it."


def damage(
    index: Index,
    id: str,  # noqa: A002
    path: Path,
    message: str,
    *,
    fix: str = "",
    repaired: str = "",
) -> Finding:
    """Return an error about a path of the index."""
    name = _shown(path.relative_to(index.root))
    return Finding(id, "error", message, fix, {"path": name, "repaired": repaired})


def _shown(path: Path | str) -> str:
    """Return a path as text for messages and JSON; names need not be valid text."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _repaired(finding: Finding, action: str) -> Finding:
    return msgspec.structs.replace(finding, evidence={**finding.evidence, "repaired": action})


# Checking


def check(index: Index, *, repair: bool = False) -> list[Finding]:
    """Compare every wheel and page of an index with its records.

    Every wheel is read completely. Each page is compared with one that is rebuilt from the files. With
    `repair`, rebuild wrong pages; move wheels out of directories with a wrong name; move wheels that changed
    after they were published, links and special files to ``.matrix/damaged``; remove records of missing
    wheels and abandoned temporary files.
    """
    findings = list(misplaced(index, repair=repair))
    if any(finding.id == "folder-irregular" and not finding.evidence["repaired"] for finding in findings):
        return findings  # nothing below it can be read
    projects = index.project_directories()
    for number, project in enumerate(projects):
        index.reporter.progress(done=number, total=len(projects))
        entries: dict[str, WheelEntry] = {}
        for finding in list(_check_wheels(index, project, entries, keep=not repair)):
            if repair and finding.id not in _NOT_REPAIRED:
                path = index.move_to_damaged(index.root / finding.evidence["path"])
                findings.append(_repaired(finding, f"moved to {_shown(path)}"))
            else:
                findings.append(finding)
        findings += _check_pages(index, project, entries, repair=repair)
    findings += _check_root(index, repair=repair)
    findings += _check_leftovers(index, repair=repair)
    return findings


def _check_wheels(
    index: Index, project: str, entries: dict[str, WheelEntry], *, keep: bool
) -> Iterator[Finding]:
    """Read the wheels of a project and collect the entries that its page should have.

    With `keep`, a damaged wheel keeps its entry.
    """
    page, paths = index.entries(project), index.wheels(project)
    records = index.records({path.name for path in paths})
    for path in paths:
        listed = page.get(path.name)
        if keep and listed is not None:
            entries[path.name] = listed
        if not is_regular(path):  # reported by `misplaced`
            continue
        finding, entry = _judge(index, path, records, listed)
        if finding is not None:
            yield finding
        if entry is not None:
            entries[path.name] = entry


def _judge(
    index: Index, path: Path, records: Collection[str], listed: WheelEntry | None
) -> tuple[Finding, None] | tuple[None, WheelEntry]:
    """Return a finding about a wheel, or else the entry that its page should have."""
    if not any(record.startswith(f"{path.name}.") for record in records):
        message = f"{path.name} has no record of where it comes from, so no page lists it."
        return damage(index, "wheel-without-record", path, message, fix=_ADOPT), None
    try:
        with index.directory(path.parent) as folder:
            entry = entry_of(folder / path.name)
            problem = _identity_problem(folder / path.name, path.parent.name)
            time_published = upload_time(folder / path.name)
    except (MatrixError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return damage(index, "wheel-unreadable", path, f"Cannot read {path.name}: {reason}"), None
    if problem:
        return damage(index, "wheel-misnamed", path, problem), None
    if record_name(path.name, entry.hashes.sha256) not in records:
        message = f"{path.name} changed after it was published; its SHA-256 is now {entry.hashes.sha256}."
        return damage(index, "wheel-changed", path, message), None
    if listed is not None:
        time_published = listed.upload_time
    return None, msgspec.structs.replace(entry, upload_time=time_published)


def _identity_problem(path: Path, project: str) -> str:
    headers = BytesHeaderParser().parsebytes(metadata_of(path))
    name, version, _, _ = parse_wheel_filename(path.name)
    if canonicalize_name(name) != project:
        return f"{path.name} is in the directory of {project}."
    stated, stated_version = str(headers.get("Name", "(none)")), str(headers.get("Version", "(none)"))
    if canonicalize_name(stated) != canonicalize_name(name):
        return f"The metadata of {path.name} has the name {shorten(stated)}."
    is_same = version_or_none(stated_version) == version
    return "" if is_same else f"The metadata of {path.name} has the version {shorten(stated_version)}."


def _check_pages(
    index: Index, project: str, entries: dict[str, WheelEntry], *, repair: bool
) -> Iterator[Finding]:
    folder = index.simple / project
    expected = index.project_pages(project, entries)
    wrong = {
        name: os.path.lexists(folder / name)
        for name, text in expected.items()
        if not index.has_content(folder / name, text)
    }
    if repair and wrong:
        index.refresh(project, entries)  # those of the page cannot be trusted
    for name, exists in wrong.items():
        problem = "does not match the files" if exists else "is missing"
        action = ("rebuilt" if expected[name] else "removed") if repair else ""
        message = f"The page simple/{project}/{name} {problem}."
        yield damage(index, "page-wrong", folder / name, message, repaired=action)


def _check_root(index: Index, *, repair: bool) -> Iterator[Finding]:
    for name, text in index.root_pages().items():
        path = index.simple / name
        is_new = not index.projects() and not os.path.lexists(path)
        if index.simple.is_dir() and not is_new and not index.has_content(path, text):
            message = f"The page simple/{name} does not list the projects."
            yield damage(index, "page-wrong", path, message, repaired="rebuilt" if repair else "")
    if repair:
        index.refresh_all()


def _check_leftovers(index: Index, *, repair: bool) -> Iterator[Finding]:
    folders = [index.root, index.simple, index.provenance, index.yanked]
    folders += [index.simple / project for project in index.project_directories()]
    for folder in folders:
        for path in _old(folder / name for name in index.names(folder, regular=True)):
            if path.name.startswith(TEMPORARY_PREFIX):
                problem = "was left behind by a process that was killed"
                yield _unneeded(index, "leftover", path, problem, repair=repair)
    for path in _old(index.builds / name for name in index.names(index.builds)):
        if path.name.startswith(TEMPORARY_PREFIX):
            problem = "is the directory of a build that another user started"
            yield _unneeded(index, "leftover", path, problem, repair=repair)
    names = {path.name for project in index.project_directories() for path in index.wheels(project)}
    for path in _old(index.provenance / name for name in index.names(index.provenance, regular=True)):
        wheel = wheel_of(path.name)
        if is_wheel(wheel) and wheel not in names:
            problem = "is the record of a wheel that does not exist"
            yield _unneeded(index, "record-without-wheel", path, problem, repair=repair)


def _old(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that no running process can still need."""
    oldest = time.time() - ABANDONED
    old = []
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            if path.lstat().st_mtime < oldest:
                old.append(path)
    return old


def _unneeded(index: Index, id: str, path: Path, problem: str, *, repair: bool) -> Finding:  # noqa: A002
    action = ""
    if repair:
        try:
            if is_regular(path):
                index.unlink(path)
            else:
                remove_tree(path)
            action = "removed"
        except PermissionError:
            problem += ", and belongs to another user"
    return damage(index, id, path, f"{_shown(path.relative_to(index.root))} {problem}.", repaired=action)


# Files where no installer looks


def misplaced(index: Index, *, repair: bool = False) -> Iterator[Finding]:
    """Find directories, pages and wheels with a wrong name or type; no file is opened.

    With `repair`, move the wheels of a directory with a wrong name to the right one, and all other misplaced
    files to ``.matrix/damaged``.
    """
    irregular = list(_irregular_directories(index))
    if irregular:
        yield from irregular
        return
    for name in index.misnamed_directories():
        folder, correct = index.simple / name, canonicalize_name(name)
        if is_normalized_name(correct):
            message = (
                f"The name of simple/{_shown(name)} is not normalized: installers look in simple/{correct}."
            )
        else:
            message = f"simple/{_shown(name)} is not the name of a project."
        finding = damage(index, "folder-misnamed", folder, message)
        yield _repaired(finding, _merge(index, folder)) if repair else finding
    for path, finding in [
        *_misplaced_pages(index),
        *_irregular_files(index),
        *chain.from_iterable(_misplaced_wheels(index, project) for project in index.project_directories()),
    ]:
        if not repair:
            yield finding
        else:
            yield _repaired(finding, f"moved to {_shown(index.move_to_damaged(path))}")


def _irregular_directories(index: Index) -> Iterator[Finding]:
    """Find links and files in place of the index's own directories; then nothing else is read."""
    own = [index.simple, index.provenance, index.signatures, index.state]
    own += [] if index.state.is_symlink() else [index.state / name for name in STATE_DIRECTORIES]
    for path in own:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            kind = "a link" if path.is_symlink() else "not a directory"
            message = f"{path.relative_to(index.root)} is {kind}, so matrix does not use it."
            yield damage(index, "folder-irregular", path, message, fix="Replace it with a directory.")


def _irregular_files(index: Index) -> Iterator[tuple[Path, Finding]]:
    """Find links, pipes, devices and sockets, except those with names of pages and wheels."""
    folders = [index.simple / name for name in index.project_directories()]
    for folder in (index.simple, *folders, index.provenance, index.yanked):
        for name in sorted(set(index.names(folder)) - set(index.names(folder, regular=True))):
            path = folder / name
            is_known = (folder in folders and name.endswith(".whl")) or name in {PAGE, JSON_PAGE}
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not is_known and not (stat.S_ISDIR(mode) and folder == index.simple):
                    shown = _shown(path.relative_to(index.root))
                    message = f"{shown} is {_kind(mode)}, which does not belong in an index."
                    yield path, damage(index, "file-irregular", path, message)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a directory" if stat.S_ISDIR(mode) else "a device")


def _merge(index: Index, folder: Path) -> str:
    """Move wheels to the directory with the normalized name without replacing any; describe the action."""
    name = canonicalize_name(folder.name)
    if not is_normalized_name(name):
        return f"moved to {_shown(index.move_to_damaged(folder))}"
    target = folder.with_name(name)
    if target.is_dir() and target.samefile(folder):  # a file system that ignores case
        folder.rename(target)
        return f"renamed to simple/{target.name}"
    names = sorted(index.names(folder))
    damaged = [_shown(moved) for name in names if (moved := _merge_file(index, folder / name, target))]
    with index.directory(index.simple) as simple:
        (simple / folder.name).rmdir()
    action = f"merged into simple/{target.name} and removed"
    return f"{action}; moved away: {', '.join(damaged)}" if damaged else action


def _merge_file(index: Index, path: Path, folder: Path) -> str:
    """Move one file into the right directory; return its new path if it went to ``.matrix/damaged``."""
    if not is_regular(path):
        return index.move_to_damaged(path)
    if path.name not in {PAGE, JSON_PAGE}:
        if not path.name.endswith(".whl"):
            return index.move_to_damaged(path)
        with index.directory(path.parent) as before, index.directory(folder, create=True) as after:
            source, target = before / path.name, after / path.name
            taken = os.path.lexists(target) or not link_exclusively(source, target)
            is_same = taken and sha256_of_regular(target) == sha256_of_regular(source)
        if taken and not is_same:
            return index.move_to_damaged(path)
    index.unlink(path)
    return ""


def _misplaced_pages(index: Index) -> Iterator[tuple[Path, Finding]]:
    for folder in (index.simple, *(index.simple / name for name in index.project_directories())):
        for path in (folder / PAGE, folder / JSON_PAGE):
            if os.path.lexists(path) and not is_regular(path):
                message = f"{path.relative_to(index.root)} is not a file."
                yield path, damage(index, "page-wrong", path, message)


def _misplaced_wheels(index: Index, project: str) -> Iterator[tuple[Path, Finding]]:
    for name in index.wheel_names(project):
        path = index.simple / project / name
        if not is_regular(path):
            problem = "is a symbolic link, which is not followed" if path.is_symlink() else "is not a file"
            if os.path.lexists(path):  # otherwise it was removed in the meantime
                yield path, damage(index, "wheel-irregular", path, f"{_shown(name)} {problem}.")
        elif not is_wheel(name):
            message = f"{_shown(name)} is not a valid wheel file name, so no page lists it."
            yield path, damage(index, "wheel-misnamed", path, message)


# Adding, removing and yanking


def adopt(index: Index, wheel: Path, audit: WheelAudit) -> Path:
    """Publish a wheel that was built elsewhere, or is in the index without a record; return its final path.

    Its record contains the time and the findings of the audit.
    """
    record = {
        "added": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "findings": msgspec.to_builtins(audit.findings),
    }
    return index.publish(wheel, record, sha256=audit.sha256)


def select(index: Index, wheel: str) -> list[Path]:
    """Return the wheels that a file name, ``name==version`` or a project name selects."""
    name, _, version = wheel.partition("==")
    if wheel.endswith(".whl"):
        paths = [path for project in index.projects() for path in index.wheels(project) if path.name == wheel]
    else:
        paths = index.wheels(name) if canonicalize_name(name) else []
        if version:
            paths = [path for path in paths if str(parse_wheel_filename(path.name)[1]) == version.strip()]
    if paths:
        return paths
    versions = [f"{name}=={parse_wheel_filename(path.name)[1]}" for path in index.wheels(name)]
    hint = did_you_mean(wheel, [*index.projects(), *versions])
    raise UsageError(f"The index {index.root} has no wheel {wheel!r}.", hint=hint)


def project_named(index: Index, name: str) -> str:
    """Return the normalized name of a project that has wheels."""
    normalized, projects = canonicalize_name(name), index.projects()
    if normalized in projects:
        return normalized
    hint = did_you_mean(canonicalize_name(name.partition("==")[0]), projects)
    raise UsageError(f"The index {index.root} has no project {name!r}.", hint=hint)


def remove(index: Index, wheels: Iterable[Path]) -> None:
    """Remove wheels, first from their pages, so that no installer is sent to a missing file.

    A wheel without a record is on no page. After a crash it can be removed again.
    """
    for project, paths in _by_project(wheels).items():
        for path in paths:
            for record in index.record_paths(path):
                index.unlink(record)
                index.unlink(index.signatures / f"{record.name}.sig")
        index.refresh(project)
        for path in paths:
            index.unlink(index.yanked / path.name)
            index.unlink(path)


def yank(index: Index, wheels: Iterable[Path], reason: str) -> None:
    """Yank wheels (PEP 592): installers skip them, unless an exact pin names them."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            index.write(index.yanked / path.name, f"{' '.join(reason.split())}\n".encode())
        index.refresh(project)


def unyank(index: Index, wheels: Iterable[Path]) -> None:
    """Undo `yank`."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            index.unlink(index.yanked / path.name)
        index.refresh(project)


def prunable(
    index: Index, *, pinned: Mapping[str, Collection[str]] | None, older_than: timedelta | None, now: datetime
) -> list[Path]:
    """Return the wheels that can be removed: of those published longer ago than `older_than`, if it is given.

    `pinned` has the versions with local labels that locks pin, by normalized name; None if no lock was given.
    The wheel with the highest build tag of each pinned version is kept.
    """
    removable = []
    for project in index.projects():
        paths = index.wheels(project)
        needed = _pinned_wheels(paths, pinned.get(project, ())) if pinned is not None else set()
        entries = index.entries(project)
        for path in paths:
            entry = entries.get(path.name)
            published = _time_published(path, entry.upload_time if entry else "")
            if path not in needed and (older_than is None or now - published > older_than):
                removable.append(path)
    return removable


def _pinned_wheels(paths: Iterable[Path], versions: Collection[str]) -> set[Path]:
    newest: dict[tuple[Version, str], tuple[tuple[object, ...], Path]] = {}
    pinned = {Version(version) for version in versions}
    for path in paths:
        _, version, build, tags = parse_wheel_filename(path.name)
        if version in pinned:
            key = (version, ",".join(sorted(map(str, tags))))
            newest[key] = max(newest.get(key, ((), path)), (build, path), key=lambda pair: pair[0])
    return {path for _, path in newest.values()}


def _time_published(path: Path, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(path.lstat().st_mtime, tz=UTC)


def _by_project(wheels: Iterable[Path]) -> dict[str, list[Path]]:
    return grouped((path.parent.name, path) for path in wheels)
