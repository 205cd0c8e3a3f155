"""Looking at every file of an index: whether each page says what is there, each wheel is what it was."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING, ClassVar

import msgspec
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.files import TEMPORARY_PREFIX
from builders.index.entries import entry_of, is_wheel, metadata_of, upload_time
from builders.index.pages import JSON_PAGE, PAGE, known_files
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builders.index.pages import Entry
    from builders.index.store import Index

_ABANDONED = 3600.0  # seconds after which a temporary file has no writer any more


class DamagedIndexError(MatrixError):
    """An index holds what it should not, or says what is not so."""

    id: ClassVar[str] = "index-damaged"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong in an index."""

    id: str
    path: str
    """Relative to the index."""
    text: str
    repaired: str = ""
    """What was done about it; empty if nothing was."""


def check(index: Index, *, repair: bool = False) -> list[Damage]:
    """Compare every wheel and page of an index with what is said of it.

    Every wheel is read whole: its hash, and that its metadata has its name and version. Each page is
    compared with one made anew from the files.

    Parameters
    ----------
    repair
        Make wrong pages anew, put wheels that changed after they were published aside under
        ``.matrix/damaged``, and remove what nobody needs: records of wheels that are gone, and
        temporary files of writers that died.
    """
    found: list[Damage] = []
    for project in _folders(index):
        truth: dict[str, Entry] = {}
        wrong = list(_check_wheels(index, project, truth, keep=not repair))
        found += [_put_aside(index, one) for one in wrong] if repair else wrong
        found += _check_pages(index, project, truth, repair=repair)
    found += _check_root(index, repair=repair)
    found += _check_leftovers(index, repair=repair)
    return found


def _folders(index: Index) -> list[str]:
    if not index.simple.is_dir():
        return []
    return sorted(one.name for one in index.simple.iterdir() if one.is_dir())


def _check_wheels(index: Index, project: str, truth: dict[str, Entry], *, keep: bool) -> Iterator[Damage]:
    """Read the wheels of a project.

    What a right page says of each goes to `truth`, by file name; of one that is damaged, if it is
    kept, that is what the page says already.
    """
    remembered = known_files(_bytes(index.simple / project / JSON_PAGE))
    for path in index.wheels(project):
        where, before = str(path.relative_to(index.root)), remembered.get(path.name)
        said = _said_hashes(index, path, before)
        if keep and before is not None:
            truth[path.name] = before
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
    wrong = [name for name, text in wanted.items() if _bytes(folder / name) != text]
    if repair and wrong:
        (folder / JSON_PAGE).unlink(missing_ok=True)  # what it remembers is not to be trusted
        index.refresh(project, truth)
    for name in wrong:
        where = str((folder / name).relative_to(index.root))
        text = "is missing" if not (folder / name).exists() else "does not say what is there"
        yield Damage("page-wrong", where, f"{where} {text}.", "made anew" if repair else "")


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
    there = {path.name for project in _folders(index) for path in index.wheels(project)}
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


def _put_aside(index: Index, damage: Damage) -> Damage:
    """Take a damaged wheel out of the index, and keep it for whoever wants to look."""
    source = index.root / damage.path
    aside = index.state / "damaged" / source.name
    aside.parent.mkdir(parents=True, exist_ok=True)
    source.replace(aside)
    return replace(damage, repaired=f"put aside as {aside.relative_to(index.root)}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
