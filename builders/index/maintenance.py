"""Maintenance of an index: check and repair it, remove, yank and prune wheels, pack it into one file.

Damage is reported as `Finding`. Its evidence has ``path``, relative to the index, and ``repaired``: the
repair, empty if there was none.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.parser import BytesHeaderParser
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.files import TEMPORARY_PREFIX, atomic_path, link_exclusively, sha256_of, write_atomic
from builders.findings import Finding
from builders.index.pages import (
    JSON_PAGE,
    PAGE,
    Entry,
    State,
    Status,
    entry_of,
    is_wheel,
    metadata_of,
    upload_time,
)
from builders.index.repository import Index
from builders.process import run
from resolver.errors import DamagedIndexError, EnvironmentLacksError, MatrixError, UsageError, did_you_mean

_ABANDONED = 3600.0
"""Age in seconds from which a temporary file counts as abandoned."""
_SHOWN_LINKS = 3


def _damage(index: Index, id: str, path: Path, message: str, *, repaired: str = "") -> Finding:  # noqa: A002
    return Finding(
        id, "error", message, evidence={"path": str(path.relative_to(index.root)), "repaired": repaired}
    )


def _repaired(finding: Finding, action: str) -> Finding:
    return msgspec.structs.replace(finding, evidence={**finding.evidence, "repaired": action})


def _move_to_damaged(index: Index, finding: Finding) -> Finding:
    path = index.move_to_damaged(index.root / finding.evidence["path"])
    return _repaired(finding, f"moved to {path}")


# Checking


def check(index: Index, *, repair: bool = False) -> list[Finding]:
    """Compare every wheel and page of an index with its records.

    Every wheel is read completely: its hash, name and version. Each page is compared with one rebuilt from
    the files.

    Parameters
    ----------
    repair
        Rebuild wrong pages; move wheels out of directories with a wrong name; move wheels that changed after
        they were published to ``.matrix/damaged``; remove records of missing wheels and abandoned temporary
        files.
    """
    findings = list(misplaced(index, repair=repair))
    for project in index.project_directories():
        entries: dict[str, Entry] = {}
        damaged = list(_check_wheels(index, project, entries, keep=not repair))
        findings += [_move_to_damaged(index, finding) for finding in damaged] if repair else damaged
        findings += _check_pages(index, project, entries, repair=repair)
    findings += _check_root(index, repair=repair)
    findings += _check_leftovers(index, repair=repair)
    return findings


def replaced(index: Index) -> Iterator[Finding]:
    """Find wheels that are not the files their pages list.

    A file is read only if its size or time differs from the page, as in a copy that did not keep times.
    """
    for project in index.project_directories():
        entries = index.entries(project)
        for path in index.wheels(project):
            entry = entries.get(path.name)
            if entry is None or not _is_regular(path) or _is_unchanged(path, entry):
                continue
            message = f"{path.name} is not the file that its page lists."
            yield _damage(index, "wheel-changed", path, message)


def _is_unchanged(path: Path, entry: Entry) -> bool:
    if path.stat().st_size != entry.size:
        return False
    return upload_time(path) == entry.upload_time or sha256_of(path) == entry.hashes.sha256


def _check_wheels(index: Index, project: str, entries: dict[str, Entry], *, keep: bool) -> Iterator[Finding]:
    """Read the wheels of a project and collect the entries that its page should have.

    With `keep`, a damaged wheel keeps the entry that the page has now.
    """
    page = index.entries(project)
    for path in index.wheels(project):
        listed = page.get(path.name)
        hashes = _known_hashes(index, path, listed)
        if keep and listed is not None:
            entries[path.name] = listed
        if not _is_regular(path):  # reported by `misplaced`
            continue
        try:
            entry = entry_of(path)
            problem = _identity_problem(path, project)
        except (MatrixError, OSError) as error:
            yield _damage(index, "wheel-unreadable", path, f"Cannot read {path.name}: {error}")
            continue
        if problem:
            yield _damage(index, "wheel-misnamed", path, problem)
        elif hashes and entry.hashes.sha256[:16] not in hashes:
            message = f"{path.name} changed after it was published; its sha256 is now {entry.hashes.sha256}."
            yield _damage(index, "wheel-changed", path, message)
        else:
            time_published = listed.upload_time if listed is not None else upload_time(path)
            entries[path.name] = msgspec.structs.replace(entry, upload_time=time_published)


def _known_hashes(index: Index, path: Path, entry: Entry | None) -> set[str]:
    """Return the first digits of the hashes a wheel may have: of its records, else of its page."""
    recorded = {name.stem.rpartition(".")[2] for name in index.record_paths(path)}
    return recorded or ({entry.hashes.sha256[:16]} if entry is not None else set())


def _identity_problem(path: Path, project: str) -> str:
    headers = BytesHeaderParser().parsebytes(metadata_of(path))
    name, version, _, _ = parse_wheel_filename(path.name)
    if canonicalize_name(name) != project:
        return f"{path.name} is in the directory of {project}."
    if canonicalize_name(headers.get("Name", "")) != canonicalize_name(name):
        return f"The metadata of {path.name} has the name {headers.get('Name', '(none)')}."
    try:
        same = Version(headers.get("Version", "")) == version
    except InvalidVersion:
        same = False
    return "" if same else f"The metadata of {path.name} has the version {headers.get('Version', '(none)')}."


def _check_pages(index: Index, project: str, entries: dict[str, Entry], *, repair: bool) -> Iterator[Finding]:
    folder = index.simple / project
    expected = dict(zip((PAGE, JSON_PAGE), index.project_pages(project, entries), strict=True))
    wrong = {
        name: (folder / name).exists() for name, text in expected.items() if _bytes(folder / name) != text
    }
    if repair and wrong:
        (folder / JSON_PAGE).unlink(missing_ok=True)  # its entries cannot be trusted
        index.refresh(project, entries)
    for name, exists in wrong.items():
        problem = "does not agree with the files" if exists else "is missing"
        action = ("rebuilt" if expected[name] else "removed") if repair else ""
        message = f"The page simple/{project}/{name} {problem}."
        yield _damage(index, "page-wrong", folder / name, message, repaired=action)


def _check_root(index: Index, *, repair: bool) -> Iterator[Finding]:
    for name, text in zip((PAGE, JSON_PAGE), index.root_pages(), strict=True):
        path = index.simple / name
        if index.simple.is_dir() and _bytes(path) != text:
            message = f"The page simple/{name} does not list the projects."
            yield _damage(index, "page-wrong", path, message, repaired="rebuilt" if repair else "")
    if repair:
        index.refresh_all()


def _check_leftovers(index: Index, *, repair: bool) -> Iterator[Finding]:
    old = time.time() - _ABANDONED
    for folder in (index.simple, index.provenance):
        for path in sorted(folder.rglob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []:
            if path.is_file() and path.stat().st_mtime < old:
                yield _unneeded(
                    index, "leftover", path, "was left behind by a process that was killed", repair=repair
                )
    names = {path.name for project in index.project_directories() for path in index.wheels(project)}
    for path in sorted(index.provenance.glob("*.json")) if index.provenance.is_dir() else []:
        wheel = path.name.rpartition(".json")[0].rpartition(".")[0]
        if is_wheel(wheel) and wheel not in names and path.stat().st_mtime < old:
            problem = "is the record of a wheel that does not exist"
            yield _unneeded(index, "record-without-wheel", path, problem, repair=repair)


def _unneeded(index: Index, id: str, path: Path, problem: str, *, repair: bool) -> Finding:  # noqa: A002
    if repair:
        path.unlink(missing_ok=True)
    message = f"{path.relative_to(index.root)} {problem}."
    return _damage(index, id, path, message, repaired="removed" if repair else "")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# Files where no installer looks


def misplaced(index: Index, *, repair: bool = False) -> Iterator[Finding]:
    """Find directories, pages and wheels with a wrong name or type; no wheel is read.

    Parameters
    ----------
    repair
        Move the wheels of a directory with a wrong name to the right one, and everything else that is
        found to ``.matrix/damaged``.
    """
    for name in index.misnamed_directories():
        folder, correct = index.simple / name, canonicalize_name(name)
        message = f"The name of simple/{name} is not normalized, so installers look in simple/{correct}."
        finding = _damage(index, "folder-misnamed", folder, message)
        yield _repaired(finding, _merge(index, folder)) if repair else finding
    findings = list(_misplaced_pages(index))
    for project in index.project_directories():
        findings += _misplaced_wheels(index, project)
    for finding in findings:
        yield _move_to_damaged(index, finding) if repair else finding


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _merge(index: Index, folder: Path) -> str:
    """Move the wheels of a directory to that of the normalized name, replacing none; return what was done."""
    target = folder.with_name(canonicalize_name(folder.name))
    if folder.is_symlink():
        folder.unlink()
        return "removed the link"
    if target.exists() and target.samefile(folder):  # a file system that ignores case
        folder.rename(target)
        return f"renamed to simple/{target.name}"
    damaged = [moved for path in sorted(folder.iterdir()) if (moved := _merge_file(index, path, target))]
    folder.rmdir()
    action = f"merged into simple/{target.name} and removed"
    return f"{action}; moved away: {', '.join(damaged)}" if damaged else action


def _merge_file(index: Index, path: Path, folder: Path) -> str:
    """Move one file into the right directory; return its new path if it went to ``.matrix/damaged``."""
    target = folder / path.name
    if not _is_regular(path):
        return index.move_to_damaged(path)
    if path.name not in {PAGE, JSON_PAGE}:
        if not path.name.endswith(".whl"):
            return index.move_to_damaged(path)
        folder.mkdir(exist_ok=True)
        taken = os.path.lexists(target) or not link_exclusively(path, target)
        if taken and not (_is_regular(target) and sha256_of(target) == sha256_of(path)):
            return index.move_to_damaged(path)
    path.unlink(missing_ok=True)
    return ""


def _misplaced_pages(index: Index) -> Iterator[Finding]:
    for folder in (index.simple, *(index.simple / name for name in index.project_directories())):
        for path in (folder / PAGE, folder / JSON_PAGE):
            if path.exists() and not path.is_file():
                message = f"{path.relative_to(index.root)} is not a file."
                yield _damage(index, "page-wrong", path, message)


def _misplaced_wheels(index: Index, project: str) -> Iterator[Finding]:
    for name in index.wheel_names(project):
        path = index.simple / project / name
        if not _is_regular(path):
            problem = "is a symbolic link, which breaks in a copy" if path.is_symlink() else "is not a file"
            if os.path.lexists(path):  # otherwise it was removed in the meantime
                yield _damage(index, "wheel-irregular", path, f"{name} {problem}.")
        elif not is_wheel(name):
            message = f"{name} is not a valid wheel file name, so no page lists it."
            yield _damage(index, "wheel-misnamed", path, message)


# Removing and yanking


def select(index: Index, wheel: str) -> list[Path]:
    """Return the wheels that a file name, ``name==version`` or a project name selects.

    Raises
    ------
    UsageError
        It selects none.
    """
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
    """Return the normalized name of a project that has wheels.

    Raises
    ------
    UsageError
        The index has no such project.
    """
    normalized, projects = canonicalize_name(name), index.projects()
    if normalized in projects:
        return normalized
    hint = did_you_mean(canonicalize_name(name.partition("==")[0]), projects)
    raise UsageError(f"The index {index.root} has no project {name!r}.", hint=hint)


def remove(index: Index, wheels: Iterable[Path]) -> None:
    """Remove wheels, first from their pages, so that no installer is sent to a missing file.

    A crash in between leaves a wheel that exists but is not listed. The next `refresh` lists it again;
    removing it again completes the removal.
    """
    for project, paths in _by_project(wheels).items():
        index.refresh(project, without={path.name for path in paths})
        for path in paths:
            for record in index.record_paths(path):
                record.unlink(missing_ok=True)
            (index.yanked / path.name).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        index.refresh(project)


def yank(index: Index, wheels: Iterable[Path], reason: str) -> None:
    """Yank wheels (PEP 592): installers skip them, unless an exact pin names them."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            write_atomic(index.yanked / path.name, f"{' '.join(reason.split())}\n")
        index.refresh(project)


def unyank(index: Index, wheels: Iterable[Path]) -> None:
    """Undo `yank`."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            (index.yanked / path.name).unlink(missing_ok=True)
        index.refresh(project)


def set_status(index: Index, project: str, state: State, reason: str) -> str:
    """Mark a project as archived, deprecated or active (PEP 792); return its normalized name.

    Raises
    ------
    UsageError
        The index has no such project.
    """
    project = project_named(index, project)
    path = index.status / project
    if state == "active":
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, msgspec.json.encode(Status(state, " ".join(reason.split()))))
    index.refresh(project)
    return project


def prunable(
    index: Index, *, pinned: Mapping[str, Collection[str]] | None, older_than: timedelta | None, now: datetime
) -> list[Path]:
    """Return the wheels that can be removed.

    Parameters
    ----------
    pinned
        Versions with local labels that locks pin, by normalized name. The wheel with the highest build tag of
        each pinned version is kept. None if no lock was given.
    older_than
        Return only wheels published longer ago than this.
    now
        The current time, with its time zone.
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
    grouped: dict[str, list[Path]] = {}
    for path in wheels:
        grouped.setdefault(path.parent.name, []).append(path)
    return grouped


# Packing


def pack(index: Index, target: Path, *, log: Path) -> None:
    """Write an index into one squashfs file, because parallel file systems are slow with many small files.

    Wheels are compressed already, so they are stored; times and owners are constant, so the same index
    gives the same bytes. An existing file is replaced when the new one is complete.

    Parameters
    ----------
    log
        File for the output of mksquashfs.

    Raises
    ------
    EnvironmentLacksError
        mksquashfs is missing.
    DamagedIndexError
        The index has a symbolic link, which would break in the packed copy.
    CommandError
        mksquashfs failed; the error names the log.
    """
    program = shutil.which("mksquashfs")
    if program is None:
        msg = "mksquashfs is not on PATH; packing an index requires it."
        raise EnvironmentLacksError(msg, hint="Install squashfs-tools, or copy the directory instead.")
    links = [path for path in (index.simple, *sorted(index.simple.rglob("*"))) if path.is_symlink()]
    if links:
        names = ", ".join(str(path.relative_to(index.root)) for path in links[:_SHOWN_LINKS])
        more = f" and {len(links) - _SHOWN_LINKS} more" if len(links) > _SHOWN_LINKS else ""
        msg = f"Symbolic links would break in the packed index: {names}{more}."
        hint = "Replace them with the files; `matrix index check` has the details."
        raise DamagedIndexError(msg, hint=hint)
    with atomic_path(target) as temporary:
        temporary.unlink()  # mksquashfs appends to an existing file
        command = [
            program, str(index.root), str(temporary), "-no-progress", "-noappend", "-all-root",
            "-noI", "-noD", "-reproducible", "-mkfs-time", "0", "-all-time", "0",
            "-wildcards", "-e", ".matrix", "-e", "simple/*/.tmp-*",
        ]  # fmt: skip
        run(command, what=f"Packing {index.root}", log=log)
