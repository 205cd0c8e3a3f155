"""Looking at every file of an index: whether each page says what is there, each wheel is what it was."""

from __future__ import annotations

import time
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.files import TEMPORARY_PREFIX, sha256_of
from builders.index.damage import Damage
from builders.index.entries import entry_of, is_wheel, metadata_of, upload_time
from builders.index.misplaced import is_plain, misplaced, put_aside
from builders.index.pages import JSON_PAGE, PAGE
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builders.index.pages import Entry
    from builders.index.store import Index

_ABANDONED = 3600.0  # seconds after which a temporary file has no writer any more


def check(index: Index, *, repair: bool = False) -> list[Damage]:
    """Compare every wheel and page of an index with what is said of it.

    Every wheel is read whole: its hash, and that its metadata has its name and version. Each page is
    compared with one made anew from the files.

    Parameters
    ----------
    repair
        Make wrong pages anew, move the wheels of a folder with a wrong name to where they belong, put
        wheels that changed after they were published aside under ``.matrix/damaged``, and remove what
        nobody needs: records of wheels that are gone, and temporary files of writers that died.
    """
    found = list(misplaced(index, repair=repair))
    for project in index.folders():
        truth: dict[str, Entry] = {}
        wrong = list(_check_wheels(index, project, truth, keep=not repair))
        found += [put_aside(index, one) for one in wrong] if repair else wrong
        found += _check_pages(index, project, truth, repair=repair)
    found += _check_root(index, repair=repair)
    found += _check_leftovers(index, repair=repair)
    return found


def replaced(index: Index) -> Iterator[Damage]:
    """Find wheels that are not the files which their pages remember.

    A file is read only where its size or its time differs from what the page says, as it does in a
    copy of an index that did not keep times.
    """
    for project in index.folders():
        remembered = index.remembered(project)
        for path in index.wheels(project):
            entry = remembered.get(path.name)
            if entry is None or not is_plain(path) or _is_still(path, entry):
                continue
            where = str(path.relative_to(index.root))
            yield Damage("wheel-changed", where, f"{path.name} is another file than the one its page lists.")


def _is_still(path: Path, entry: Entry) -> bool:
    if path.stat().st_size != entry.size:
        return False
    return upload_time(path) == entry.upload_time or sha256_of(path) == entry.hashes.sha256


def _check_wheels(index: Index, project: str, truth: dict[str, Entry], *, keep: bool) -> Iterator[Damage]:
    """Read the wheels of a project.

    What a right page says of each goes to `truth`, by file name; of one that is damaged, if it is
    kept, that is what the page says already.
    """
    remembered = index.remembered(project)
    for path in index.wheels(project):
        where, before = str(path.relative_to(index.root)), remembered.get(path.name)
        said = _said_hashes(index, path, before)
        if keep and before is not None:
            truth[path.name] = before
        if not is_plain(path):  # which was said already
            continue
        try:
            entry = entry_of(path)
            problem = _identity_problem(path, project)
        except (MatrixError, OSError) as error:
            yield Damage("wheel-unreadable", where, f"{path.name} cannot be read: {error}")
            continue
        if problem:
            yield Damage("wheel-misnamed", where, problem)
        elif said and entry.hashes.sha256[:16] not in said:
            now = entry.hashes.sha256
            text = f"{path.name} has another sha256 than when it was published (now {now})."
            yield Damage("wheel-changed", where, text)
        else:
            time_known = before.upload_time if before is not None else upload_time(path)
            truth[path.name] = msgspec.structs.replace(entry, upload_time=time_known)


def _said_hashes(index: Index, path: Path, entry: Entry | None) -> set[str]:
    """Give the first digits of every hash that the wheel is said to have.

    Where there is a record, what only the page says is a fault of the page.
    """
    recorded = {name.stem.rpartition(".")[2] for name in index.record_paths(path)}
    return recorded or ({entry.hashes.sha256[:16]} if entry is not None else set())


def _identity_problem(path: Path, project: str) -> str:
    headers = BytesHeaderParser().parsebytes(metadata_of(path))
    name, version, _, _ = parse_wheel_filename(path.name)
    if canonicalize_name(name) != project:
        return f"{path.name} lies among the wheels of {project}."
    if canonicalize_name(headers.get("Name", "")) != canonicalize_name(name):
        return f"{path.name} has the metadata of {headers.get('Name', 'nothing')}."
    try:
        same = Version(headers.get("Version", "")) == version
    except InvalidVersion:
        same = False
    return "" if same else f"{path.name} has the metadata of version {headers.get('Version', '(none)')}."


def _check_pages(index: Index, project: str, truth: dict[str, Entry], *, repair: bool) -> Iterator[Damage]:
    folder = index.simple / project
    wanted = dict(zip((PAGE, JSON_PAGE), index.project_pages(project, truth), strict=True))
    wrong = {name: (folder / name).exists() for name, text in wanted.items() if _bytes(folder / name) != text}
    if repair and wrong:
        (folder / JSON_PAGE).unlink(missing_ok=True)  # what it remembers is not to be trusted
        index.refresh(project, truth)
    for name, there in wrong.items():
        where = str((folder / name).relative_to(index.root))
        text = "does not say what is there" if there else "is missing"
        done = "made anew" if wanted[name] else "removed"
        yield Damage("page-wrong", where, f"{where} {text}.", done if repair else "")


def _check_root(index: Index, *, repair: bool) -> Iterator[Damage]:
    for name, text in zip((PAGE, JSON_PAGE), index.root_pages(), strict=True):
        path = index.simple / name
        if index.simple.is_dir() and _bytes(path) != text:
            where = str(path.relative_to(index.root))
            done = "made anew" if repair else ""
            yield Damage("page-wrong", where, f"{where} does not list the projects.", done)
    if repair:
        index.refresh_all()


def _check_leftovers(index: Index, *, repair: bool) -> Iterator[Damage]:
    """Find temporary files that no writer will finish, and records of wheels that are gone."""
    old = time.time() - _ABANDONED
    for folder in (index.simple, index.provenance):
        for path in sorted(folder.rglob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []:
            if path.is_file() and path.stat().st_mtime < old:
                yield _removed(index, path, "leftover", "is what a killed writer left", repair=repair)
    there = {path.name for project in index.folders() for path in index.wheels(project)}
    for path in sorted(index.provenance.glob("*.json")) if index.provenance.is_dir() else []:
        wheel = path.name.rpartition(".json")[0].rpartition(".")[0]
        if is_wheel(wheel) and wheel not in there and path.stat().st_mtime < old:
            what = "is the record of a wheel that is gone"
            yield _removed(index, path, "record-without-wheel", what, repair=repair)


def _removed(index: Index, path: Path, name: str, text: str, *, repair: bool) -> Damage:
    where = str(path.relative_to(index.root))
    if repair:
        path.unlink(missing_ok=True)
    return Damage(name, where, f"{where} {text}.", "removed" if repair else "")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
