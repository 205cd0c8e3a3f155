"""The index: a static simple repository in a directory, without locks and without a database.

Layout::

    index.html                                 how to use the index
    simple/index.html, index.json              the projects
    simple/<project>/index.html, index.json    the project's wheels, with hashes
    simple/<project>/<wheel>
    provenance/<wheel>.<hash>.json             the provenance of the wheel with this hash
    signatures/<wheel>.<hash>.json.sig         a signature of it, if somebody made one
    .matrix/yanked/<wheel>                     the reason why a wheel is yanked (PEP 592)
    .matrix/damaged/                           files that maintenance moved out of the index
    .matrix/...                                logs, build directories and others

Links are relative, so the directory can be moved, bound into a container, or served by any web
server. Every page can be rebuilt from the files. A wheel is published when its file gets its final
name, which only one publisher can do; its provenance exists before that, and its pages follow. Writers
take no lock, because shared file systems often have none: `builders.index.replacing` keeps a slow or killed
writer from putting back an older page.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from packaging.utils import canonicalize_name, is_normalized_name, parse_wheel_filename

from builders.index.access import directory, is_regular, read_regular, refuse, sha256_of_regular
from builders.index.pages import (
    JSON_PAGE,
    LANDING_START,
    PAGE,
    WheelEntry,
    entries_of_page,
    entry_of,
    is_wheel,
    landing_html,
    metadata_of,
    project_html,
    project_json,
    root_html,
    root_json,
    upload_time,
)
from builders.index.replacing import commit, prepare
from builders.storage.files import (
    TEMPORARY_PREFIX,
    NotRegularError,
    copy_file,
    create_file,
    flush,
    open_regular,
    replace_file,
    temporary_sibling,
)
from builders.storage.lease import link_exclusively
from resolver.errors import MatrixError, NameTakenError
from resolver.reporter import SILENT, Reporter
from resolver.texts import escaped
from resolver.versions import grouped

_CHUNK = 1 << 18  # bytes
_LARGEST_PAGE = 1 << 28  # bytes; a page with 10,000 wheels has 4 MB
_LARGEST_RECORD = 1 << 26  # bytes
_HASH_DIGITS = 16  # of a wheel's hash, in the name of its record
_RECORD_ENDING = len(f".{'0' * _HASH_DIGITS}.json")
PAGES = (JSON_PAGE, PAGE)
_ENDINGS = (".json", ".html")
STATE_DIRECTORIES = ("builds", "damaged", "locks", "logs", "yanked")
"""The directories in ``.matrix``."""


class _State(NamedTuple):
    """The inputs of a project's pages, except the content of its wheels; names are those of files."""

    names: list[str]
    records: frozenset[str]
    yanked: frozenset[str]


class Published(msgspec.Struct, frozen=True):
    """A wheel in the index, with its provenance (empty if there is none)."""

    path: Path
    provenance: Mapping[str, Any]


class Index:
    """Published wheels, their pages and their provenance, in a directory that need not exist yet.

    `reporter` receives a warning about each wheel that cannot be listed, and progress. Every method that uses
    the directory raises `MatrixError` if a directory in it is a link or a file, and `OSError` if it cannot be
    read or written.
    """

    def __init__(self, root: str | Path, reporter: Reporter = SILENT) -> None:
        self.reporter = reporter
        self._reported: set[str] = set()
        self.root = Path(root).absolute()
        self.simple = self.root / "simple"
        self.state = self.root / ".matrix"
        self.builds = self.state / "builds"
        self.yanked = self.state / "yanked"
        self.provenance = self.root / "provenance"
        self.signatures = self.root / "signatures"

    def projects(self) -> list[str]:
        """Return the normalized names of all projects that have wheels."""
        return [name for name in self.project_directories() if self._names(name)]

    def project_directories(self) -> list[str]:
        """Return the directories that have a normalized project name, including empty ones."""
        return [name for name in self._directories() if is_normalized_name(name)]

    def misnamed_directories(self) -> list[str]:
        """Return the directories that installers ignore because their names are not normalized."""
        return [name for name in self._directories() if not is_normalized_name(name)]

    def wheels(self, project: str) -> list[Path]:
        """Return the paths of a project's wheels, sorted by file name."""
        project = canonicalize_name(project)
        return [self.simple / project / name for name in self._names(project)]

    def wheels_of(self, project: str, version: str) -> list[Path]:
        """Return the paths of the wheels of one version that have a record, sorted by file name."""
        paths = [path for path in self.wheels(project) if path.name.split("-")[1] == version]
        recorded = {wheel_of(record) for record in self.records({path.name for path in paths})}
        return [path for path in paths if path.name in recorded]

    def wheel_names(self, project: str) -> list[str]:
        """Return the names that end in ``.whl``; `is_wheel` is slow for thousands of names."""
        listed = self.names(self.simple / project)
        return sorted([name for name in listed if name.endswith(".whl") and not name.startswith(".")])

    def entries(self, project: str) -> Mapping[str, WheelEntry]:
        """Return the entries on a project's page by file name; empty if there is no page."""
        return entries_of_page(self.read(self.simple / project / JSON_PAGE, largest=_LARGEST_PAGE))

    def directory(self, path: Path, *, create: bool = False) -> AbstractContextManager[Path]:
        """Open a directory of the index, and yield a path that stays valid if the directory is renamed."""
        return directory(self.root, path, create=create)

    def names(self, path: Path, *, regular: bool = False) -> list[str]:
        """Return the names in a directory, or those of its regular files; empty if it does not exist."""
        try:
            with self.directory(path) as opened:
                if not regular:
                    return os.listdir(opened)  # noqa: PTH208  three times faster than Path.iterdir
                with os.scandir(opened) as listed:
                    return [entry.name for entry in listed if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def read(self, path: Path, *, largest: int = _LARGEST_RECORD) -> bytes:
        """Return the content of a file; empty if it does not exist or has more than `largest` bytes."""
        try:
            with self.directory(path.parent) as folder:
                return read_regular(folder / path.name, largest=largest)
        except FileNotFoundError:
            return b""

    def write(self, path: Path, data: bytes) -> None:
        """Write a file atomically; create its directory if necessary."""
        with self.directory(path.parent, create=True) as folder:
            replace_file(folder / path.name, data)

    def state_directory(self, name: str) -> Path:
        """Create a directory in ``.matrix`` and return its path."""
        with self.directory(self.state / name, create=True):
            return self.state / name

    def unlink(self, path: Path) -> None:
        """Remove a file or a link, if it exists."""
        with suppress(FileNotFoundError), self.directory(path.parent) as folder:
            (folder / path.name).unlink()

    def refresh(self, project: str, known: Mapping[str, WheelEntry] | None = None) -> bool:
        """Bring the pages of a project and of the root up to date; return if any changed.

        Call this after each change of the files. A wheel is listed if it has a record. A wheel that cannot be
        read is left out with a warning. `known` are the entries by file name to use instead of those on the
        present page.
        """
        project = canonicalize_name(project)
        changed = self._refresh_project(project, known)
        return self._refresh_root() or changed

    def refresh_all(self, projects: Iterable[str] | None = None) -> list[str]:
        """Rewrite every page, or those of `projects`, that does not match the files.

        Return the projects with changed pages.
        """
        if not self.simple.is_dir():
            return []
        names = self.project_directories() if projects is None else projects
        changed = [name for name in names if self._refresh_project(name)]
        self._refresh_root()
        return changed

    def project_pages(self, project: str, known: Mapping[str, WheelEntry]) -> dict[str, bytes]:
        """Return the text of a project's pages for the wheels in `known`; empty without wheels."""
        state = self._state(project)
        names = [name for name in state.names if name in known]
        return self._texts(project, state._replace(names=names), known)

    def root_pages(self, adding: str = "") -> dict[str, bytes]:
        """Return the text of the pages that list the projects, also one that has no page yet."""
        projects = self._paged(adding)
        return {JSON_PAGE: root_json(projects), PAGE: root_html(projects)}

    def move_to_damaged(self, source: Path) -> str:
        """Move a file to ``.matrix/damaged`` under a free name, and return its new path in the index."""
        folder = self.state / "damaged"
        with self.directory(source.parent) as before, self.directory(folder, create=True) as after:
            name, number = source.name, 0
            while os.path.lexists(after / name):
                number += 1
                name = f"{source.name}.{number}"
            (before / source.name).rename(after / name)
        return str((folder / name).relative_to(self.root))

    def _refresh_project(self, project: str, known: Mapping[str, WheelEntry] | None = None) -> bool:
        with _Pages(self, self.simple / project) as pages:
            return commit(pages, PAGES, partial(self._project_texts, project, known))

    def _refresh_root(self) -> bool:
        with _Pages(self, self.simple) as pages, _Pages(self, self.root) as landing:
            changed = commit(pages, PAGES, self.root_pages)
            return commit(landing, (PAGE,), self._landing_text) or changed

    def _project_texts(
        self,
        project: str,
        known: Mapping[str, WheelEntry] | None = None,
        adding: WheelEntry | None = None,
    ) -> dict[str, bytes]:
        """Return the text of a project's pages, also with a wheel that need not be there yet."""
        added = {adding.filename: adding} if adding else {}
        state = self._state(project, added)
        return self._texts(project, state, {**(self.entries(project) if known is None else known), **added})

    def has_content(self, path: Path, text: bytes) -> bool:
        """Return whether a file has exactly this content; a missing file counts as empty."""
        try:
            with self.directory(path.parent) as folder:
                return _has_content(folder / path.name, text)
        except FileNotFoundError:
            return not text

    def _landing_text(self, adding: str = "") -> dict[str, bytes]:
        """Return the text of the landing page, unless another program wrote the present page."""
        path, projects = self.root / PAGE, self._paged(adding)
        if os.path.lexists(path):
            is_own = self.read(path, largest=_LARGEST_PAGE).startswith(LANDING_START)
            return {PAGE: landing_html(projects)} if is_own else {}
        return {PAGE: landing_html(projects)} if projects else {}

    def _paged(self, adding: str = "") -> list[str]:
        """Return the projects that have a page, and `adding`; the root must not link to others."""
        return [
            name
            for name in self.project_directories()
            if name == adding or os.path.exists(f"{self.simple}/{name}/{PAGE}")  # noqa: PTH110  ten times faster
        ]

    def _directories(self) -> list[str]:
        try:
            with self.directory(self.simple) as folder, os.scandir(folder) as listed:
                names = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith(".") and name not in {PAGE, JSON_PAGE})

    def _state(self, project: str, adding: Mapping[str, WheelEntry] = {}) -> _State:
        listed = self.names(self.simple / project, regular=True)
        names = sorted({name for name in listed if name.endswith(".whl") and name[0] != "."} | adding.keys())
        # The records are listed after the wheels. A publisher writes the record first, so none is missing.
        yanked = self.names(self.yanked, regular=True)
        return _State(
            names,
            self.records(set(names))
            | {record_name(name, entry.hashes.sha256) for name, entry in adding.items()},
            frozenset(yanked).intersection(names if yanked else ()),
        )

    def records(self, wheels: Collection[str]) -> frozenset[str]:
        """Return the file names of the records of these wheels."""
        listed = self.names(self.provenance, regular=True) if wheels else ()
        return frozenset([record for record in listed if wheel_of(record) in wheels])

    def _texts(self, project: str, state: _State, known: Mapping[str, WheelEntry]) -> dict[str, bytes]:
        recorded = {wheel_of(record) for record in state.records}
        entries = []
        for name in state.names:
            entry = known.get(name)
            if name not in recorded or not (entry or is_wheel(name)):
                continue
            # The page is believed as long as there is a record of the hash that it states.
            if entry is None or record_name(name, entry.hashes.sha256) not in state.records:
                entry = self._entry(project, name)
                if entry is None or record_name(name, entry.hashes.sha256) not in state.records:
                    continue
            reason: str | bool = name in state.yanked
            if reason:
                reason = self.read(self.yanked / name).decode(errors="replace").strip() or True
            if entry.yanked != reason:
                entry = msgspec.structs.replace(entry, yanked=reason)
            entries.append(entry)
        if not entries:
            return dict.fromkeys(PAGES, b"")
        return {JSON_PAGE: project_json(project, entries), PAGE: project_html(project, entries)}

    def _entry(self, project: str, name: str) -> WheelEntry | None:
        """Read a wheel; return None, and warn once, if it is damaged or belongs to somebody else.

        Other errors are not caught: a page that is written while the file system fails must not lose wheels.
        """
        try:
            with self.directory(self.simple / project) as folder:
                path = folder / name
                return msgspec.structs.replace(entry_of(path), upload_time=upload_time(path))
        except (MatrixError, FileNotFoundError, PermissionError) as error:
            if name not in self._reported and not isinstance(error, FileNotFoundError):
                self._reported.add(name)
                self.reporter.warning(f"{name} is not listed, because it cannot be read: {error}")
            return None

    def _names(self, project: str) -> list[str]:
        return [name for name in self.wheel_names(project) if is_wheel(name)]

    def published(self, *projects: str) -> Iterator[Published]:
        """Yield the wheels of projects with their provenance; the records are listed once."""
        paths = [path for project in projects for path in self.wheels(project)]
        records = grouped(
            (wheel_of(record), record) for record in self.records({path.name for path in paths})
        )
        for path in paths:
            yield Published(path, self._provenance(path, records.get(path.name, ())))

    def find(self, project: str, build_key: str) -> Published | None:
        """Return the wheel that was built under a build key, if there is one."""
        return next(
            (wheel for wheel in self.published(project) if build_key_of(wheel.provenance) == build_key), None
        )

    def next_build_number(self, project: str, version: str) -> int | None:
        """Return the build number for the next wheel of a version; None for the first (PEP 427)."""
        numbers = []
        for path in self.wheels(project):
            _, wheel_version, build, _ = parse_wheel_filename(path.name)
            if str(wheel_version) == version:
                numbers.append(build[0] if build else 0)
        return max(numbers) + 1 if numbers else None

    def publish(self, wheel: Path, provenance: Mapping[str, Any], *, sha256: str = "") -> Path:
        """Copy a wheel into the index, list it on its pages, and return its path there.

        A crash leaves the index with or without the wheel, never with a part of it. The next `refresh` lists
        a wheel whose publisher was killed. A wheel that is in the index without a record gets its record: the
        provenance, with the hash and the size of the wheel.

        Raise `NameTakenError` if the index has a wheel of that name with other content; `MatrixError` if the
        file is not a wheel, or does not have the hash that was checked, `sha256` (empty if it was not
        checked).
        """
        metadata_of(wheel.resolve(), wheel.name)
        project = canonicalize_name(parse_wheel_filename(wheel.name)[0])
        target = self.simple / project / wheel.name
        with (
            self.directory(target.parent, create=True) as folder,
            self.directory(self.provenance, create=True) as records,
            temporary_sibling(folder / wheel.name) as copied,
        ):
            copy_file(wheel, copied)
            flush(copied)
            # From the copy, because the given file may still be changed by others.
            entry = msgspec.structs.replace(entry_of(copied, wheel.name), upload_time=upload_time(copied))
            digest = entry.hashes.sha256
            if sha256 and digest != sha256:
                msg = f"{wheel.name} changed after it was checked: its SHA-256 was {sha256}, now {digest}."
                raise MatrixError(msg, hint="Nothing was published. Run the same command again.")
            is_there = os.path.lexists(folder / wheel.name)
            if is_there:
                self._require_same(target, digest)
            with self._pages_of(project) as pages:
                adding = self._changes(project, pages, entry)
                # Before the wheel gets its name, so that a full disk or a missing permission prevents that.
                prepared = [{} if is_there else prepare(*change) for change in adding]
                record = records / record_name(wheel.name, digest)
                # A record without its wheel may be old, so that a repair removes it at this moment.
                if not (is_there and os.path.lexists(record)):
                    replace_file(record, _record_text(provenance, entry))
                if is_there or not link_exclusively(copied, folder / wheel.name):
                    self._require_same(target, digest)
                    prepared = [{} for _ in adding]  # the file that is there has its own upload time
                # Without `adding`: from now on, only what is in the directories counts.
                for change, announced in zip(self._changes(project, pages), prepared, strict=True):
                    commit(*change, announced)
        return target

    @contextmanager
    def _pages_of(self, project: str) -> Iterator[tuple[_Pages, _Pages, _Pages]]:
        paths = self.simple / project, self.simple, self.root
        with _Pages(self, paths[0]) as own, _Pages(self, paths[1]) as root, _Pages(self, paths[2]) as landing:
            yield own, root, landing

    def _changes(
        self, project: str, pages: tuple[_Pages, _Pages, _Pages], adding: WheelEntry | None = None
    ) -> list[tuple[_Pages, Sequence[str], Callable[[], Mapping[str, bytes]]]]:
        """Return the pages that a change in a project changes, in this order, as arguments of `commit`.

        `adding` is a wheel that the texts contain although it need not be there yet.
        """
        own, root, landing = pages
        return [
            (own, PAGES, partial(self._project_texts, project, adding=adding)),
            (root, PAGES, partial(self.root_pages, project if adding else "")),
            (landing, (PAGE,), partial(self._landing_text, project if adding else "")),
        ]

    def _require_same(self, target: Path, digest: str) -> None:
        """Check that a file of the index has this hash."""
        with self.directory(target.parent) as folder:
            actual = sha256_of_regular(folder / target.name)
        if not actual:
            refuse(target, "exists, but is not a file")
        if actual != digest:
            msg = f"{target.name} is already in the index {self.root} with different content."
            raise NameTakenError(msg, hint="A published wheel is never replaced; a rebuild gets a build tag.")

    def _provenance(self, wheel: Path, names: Collection[str]) -> dict[str, Any]:
        """Return the provenance of a wheel.

        Publishers of different wheels with the same name may leave several records: that with its hash
        counts.
        """
        if not is_regular(wheel):
            return {}
        read = (self._read_record(self.provenance / name) for name in sorted(names))
        records = [record for record in read if record.get("size") == wheel.lstat().st_size]
        if len(records) > 1:
            digest = sha256_of_regular(wheel)
            records = [record for record in records if record.get("sha256") == digest]
        return records[0] if records else {}

    def record_paths(self, wheel: Path) -> list[Path]:
        """Return the files with provenance of wheels of this name."""
        return sorted(self.provenance / record for record in self.records({wheel.name}))

    def _read_record(self, path: Path) -> dict[str, Any]:
        try:
            record = escaped(json.loads(self.read(path) or b"{}"))
        except (OSError, ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}


class _Pages:
    """The pages of a directory of an index, as `builders.index.replacing` replaces them."""

    def __init__(self, index: Index, path: Path) -> None:
        self._index = index
        self._path = path
        self._files: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._files]:
            self.remove(name)

    def announce(self, page: str) -> str:
        name = f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}{Path(page).suffix}"
        with self._errors_of(page), self._index.directory(self._path, create=True) as folder:
            self._files[name] = create_file(folder / name)
        return name

    def fill(self, name: str, page: str, text: bytes) -> None:
        path = self._path / page
        if path.is_dir() and not path.is_symlink():  # a rename replaces anything else
            msg = f"{path} is a directory, but must be a page."
            raise MatrixError(msg, hint="`matrix index check --repair` moves it away.", id="index-damaged")
        # Not by its name: that would create the file again after another writer has removed it.
        file = self._files[name]
        try:
            with self._errors_of(page):
                with open(file, "wb", closefd=False) as written:
                    written.write(text)
                os.fsync(file)  # with a quota, errors may appear only here
        except OSError as error:
            if error.errno != errno.ESTALE:  # on NFS, another machine has removed it
                raise

    def rename(self, name: str, page: str) -> bool:
        try:
            with self._errors_of(page), self._index.directory(self._path) as folder:
                (folder / name).replace(folder / page)
        except FileNotFoundError:
            return False
        os.close(self._files.pop(name))
        return True

    def remove(self, name: str) -> None:
        if name in self._files:
            os.close(self._files.pop(name))
        self._index.unlink(self._path / name)

    def announced(self) -> list[str]:
        return [
            name
            for name in self._index.names(self._path)
            if name.startswith(TEMPORARY_PREFIX) and name.endswith(_ENDINGS)
        ]

    def has_content(self, page: str, text: bytes) -> bool:
        return self._index.has_content(self._path / page, text)

    @contextmanager
    def _errors_of(self, page: str) -> Iterator[None]:
        """Let errors name the page, which users know."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path / page)
            raise


def record_name(wheel: str, sha256: str) -> str:
    """Return the file name of the record of a wheel with this hash."""
    return f"{wheel}.{sha256[:_HASH_DIGITS]}.json"


def wheel_of(record: str) -> str:
    """Return the file name of the wheel that a record is for."""
    return record[:-_RECORD_ENDING]


def _record_text(provenance: Mapping[str, Any], entry: WheelEntry) -> bytes:
    record = {
        **provenance,
        "sha256": entry.hashes.sha256,
        "size": entry.size,
        "requires_python": entry.requires_python,
    }
    return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()


def _has_content(path: Path, text: bytes) -> bool:
    """Return whether a file has exactly this content; a missing file counts as empty."""
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return not text
    except NotRegularError:
        return False
    with os.fdopen(file, "rb", buffering=0) as source:
        if os.fstat(file).st_size != len(text):
            return False
        at = 0
        # In chunks: with thousands of wheels, memory for a whole page costs more than reading it.
        while chunk := source.read(_CHUNK):
            if not text.startswith(chunk, at):
                return False
            at += len(chunk)
        return at == len(text)


def build_key_of(document: Mapping[str, Any]) -> str:
    """Return the build key of a provenance document; empty if it has none."""
    value: object = document
    for key in ("predicate", "buildDefinition", "internalParameters", "buildKey"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""
