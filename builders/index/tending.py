"""Taking wheels out of an index, and saying that they should not be chosen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builders.files import write_atomic
from builders.index.pages import Status
from resolver.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from builders.index.pages import State
    from builders.index.store import Index


def select(index: Index, what: str) -> list[Path]:
    """Give the wheels that a text names: a file name, ``name==version`` or a project.

    Raises
    ------
    UsageError
        The index has none such.
    """
    name, _, version = what.partition("==")
    if what.endswith(".whl"):
        found = [path for project in index.projects() for path in index.wheels(project) if path.name == what]
    else:
        found = index.wheels(name) if canonicalize_name(name) else []
        if version:
            found = [path for path in found if str(parse_wheel_filename(path.name)[1]) == version.strip()]
    if found:
        return found
    msg = f"The index {index.root} has no wheel {what!r}."
    versions = [f"{name}=={parse_wheel_filename(path.name)[1]}" for path in index.wheels(name)]
    raise UsageError(msg, hint=did_you_mean(what, [*index.projects(), *versions]))


def existing(index: Index, project: str) -> str:
    """Give the normalised name of a project that has wheels.

    Raises
    ------
    UsageError
        The index has none of that name.
    """
    name, projects = canonicalize_name(project), index.projects()
    if name in projects:
        return name
    msg = f"The index {index.root} has no project {project!r}."
    raise UsageError(msg, hint=did_you_mean(canonicalize_name(project.partition("==")[0]), projects))


def remove(index: Index, wheels: Iterable[Path]) -> None:
    """Take wheels out: first off the page, so that no reader is sent to a file that is gone.

    What a crash in between leaves is a wheel that is still there and unlisted; the next `refresh`
    lists it again, and removing it again ends it.
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
    """Say that wheels should not be chosen any more (PEP 592); an exact pin still installs them."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            write_atomic(index.yanked / path.name, f"{' '.join(reason.split())}\n")
        index.refresh(project)


def unyank(index: Index, wheels: Iterable[Path]) -> None:
    """Take back what `yank` said."""
    for project, paths in _by_project(wheels).items():
        for path in paths:
            (index.yanked / path.name).unlink(missing_ok=True)
        index.refresh(project)


def set_status(index: Index, project: str, state: State, reason: str) -> str:
    """Say that a project is archived, deprecated or active again (PEP 792); give its normalised name.

    Raises
    ------
    UsageError
        The index has no such project; one wheel of it has no status.
    """
    project = existing(index, project)
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
    """Give the wheels that nobody needs.

    Parameters
    ----------
    pinned
        What locks pin: normalised name to versions with their labels. Of a pinned version the wheel
        with the highest build tag is kept. None: nothing is known of any lock.
    older_than
        Only wheels that came longer ago than this are given.
    now
        With its time zone.
    """
    found = []
    for project in index.projects():
        paths = index.wheels(project)
        kept = _kept(paths, pinned.get(project, ())) if pinned is not None else set()
        remembered = index.remembered(project)
        for path in paths:
            entry = remembered.get(path.name)
            came = _came(path, entry.upload_time if entry else "")
            if path not in kept and (older_than is None or now - came > older_than):
                found.append(path)
    return found


def _kept(paths: Iterable[Path], versions: Collection[str]) -> set[Path]:
    newest: dict[tuple[Version, str], tuple[tuple[object, ...], Path]] = {}
    wanted = {Version(one) for one in versions}
    for path in paths:
        _, version, build, tags = parse_wheel_filename(path.name)
        if version in wanted:
            key = (version, ",".join(sorted(map(str, tags))))
            newest[key] = max(newest.get(key, ((), path)), (build, path), key=lambda one: one[0])
    return {path for _, path in newest.values()}


def _came(path: Path, upload_time: str) -> datetime:
    try:
        return datetime.strptime(upload_time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(path.lstat().st_mtime, tz=UTC)


def _by_project(wheels: Iterable[Path]) -> dict[str, list[Path]]:
    grouped: dict[str, list[Path]] = {}
    for path in wheels:
        grouped.setdefault(path.parent.name, []).append(path)
    return grouped
