"""The index: a static simple repository in a directory, without locks and without a database.

Layout::

    simple/index.html, index.json              the projects
    simple/<project>/index.html, index.json    the project's wheels, with hashes
    simple/<project>/<wheel>
    provenance/<wheel>.<hash>.json             what the wheel with this hash was built from
    .matrix/yanked/<wheel>                     why a wheel is yanked (PEP 592)
    .matrix/status/<project>                   the status of a project (PEP 792)
    .matrix/damaged/                           files that maintenance moved out of the index
    .matrix/                                   also logs and build directories

Links are relative, so the directory can be moved, bound into a container, or served by any web
server. Every page can be rebuilt from the files. A wheel is published when its file gets its final
name, which only one publisher can do; its provenance exists before that, and its pages follow. Writers
take no lock, because shared file systems often have none: each writer rewrites the pages until they
agree with the directory, so the last writer always leaves them correct.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.files import flush, link_exclusively, sha256_of, temporary_sibling, write_atomic
from builders.index.pages import (
    ACTIVE,
    JSON_PAGE,
    PAGE,
    Entry,
    Status,
    entries_of_page,
    entry_of,
    is_wheel,
    project_html,
    project_json,
    root_html,
    root_json,
    upload_time,
)
from resolver.errors import DamagedIndexError, MatrixError, NameTakenError

_CHUNK = 1 << 18  # bytes
_State = tuple[list[str], frozenset[str], Status]
"""File names of a project's wheels, the yanked ones among them, and the project's status."""


@dataclass(frozen=True, slots=True)
class Published:
    """A wheel in the index, with its provenance (empty if there is none)."""

    path: Path
    provenance: Mapping[str, Any]


class Index:
    """Published wheels, their pages and their provenance.

    Parameters
    ----------
    root
        The directory, which need not exist yet.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.simple = self.root / "simple"
        self.state = self.root / ".matrix"
        self.yanked = self.state / "yanked"
        self.status = self.state / "status"
        self.provenance = self.root / "provenance"

    def projects(self) -> list[str]:
        """Return the normalized names of all projects that have wheels."""
        return [name for name in self.project_directories() if self._names(name)]

    def project_directories(self) -> list[str]:
        """Return the names of all project directories with a normalized name, empty ones included."""
        return [name for name in self._directories() if name == canonicalize_name(name)]

    def misnamed_directories(self) -> list[str]:
        """Return the directories that installers ignore because their names are not normalized."""
        return [name for name in self._directories() if name != canonicalize_name(name)]

    def wheels(self, project: str) -> list[Path]:
        """Return the paths of a project's wheels, sorted by file name."""
        project = canonicalize_name(project)
        return [self.simple / project / name for name in self._names(project)]

    def wheels_of(self, project: str, version: str) -> list[Path]:
        """Return the paths of the wheels of one version, sorted by file name."""
        return [path for path in self.wheels(project) if f"-{version}-" in path.name]

    def wheel_names(self, project: str) -> list[str]:
        """Return the names that end in ``.whl``; `is_wheel` is slow for thousands of names."""
        listed = _listdir(self.simple / project)
        return sorted([name for name in listed if name.endswith(".whl") and not name.startswith(".")])

    def entries(self, project: str) -> Mapping[str, Entry]:
        """Return the entries on a project's page by file name; empty without a page."""
        return entries_of_page(_read(self.simple / project / JSON_PAGE))

    def refresh(
        self,
        project: str,
        known: Mapping[str, Entry] | None = None,
        *,
        without: Collection[str] = (),
    ) -> bool:
        """Rewrite the pages of a project, and of the root, until they agree with the files.

        The slower of two writers may replace a newer page with an older one. So each writer compares
        again after it wrote: the last comparison follows the last new wheel and the last written page,
        and finds any difference.

        Parameters
        ----------
        known
            Entries of wheels that the page does not have yet, by file name.
        without
            Names of files to leave out although they still exist.

        Returns
        -------
        bool
            Whether anything was written.

        Raises
        ------
        MatrixError
            A file named like a wheel is not a wheel.
        """
        project = canonicalize_name(project)
        changed = self._refresh_project(project, known or {}, without)
        return self._refresh_root() or changed

    def refresh_all(self) -> list[str]:
        """Rewrite every page that does not agree with the files, and return the projects it belonged to.

        Directories without a normalized name get no page: no installer reads them.

        Raises
        ------
        MatrixError
            A file named like a wheel is not a wheel.
        """
        if not self.simple.is_dir():
            return []
        changed = [name for name in self.project_directories() if self._refresh_project(name, {}, ())]
        self._refresh_root()
        return changed

    def project_pages(self, project: str, known: Mapping[str, Entry]) -> tuple[bytes, bytes]:
        """Return a project's pages, HTML and JSON, for the wheels in `known`; both empty without any."""
        names, yanked, status = self._state(project)
        listed = [name for name in names if name in known]
        return self._pages(project, (listed, yanked, status), known)

    def root_pages(self) -> tuple[bytes, bytes]:
        """Return the pages that list the projects, HTML and JSON."""
        names = self._paged()
        return root_html(names), root_json(names)

    def move_to_damaged(self, source: Path) -> str:
        """Move a file to ``.matrix/damaged`` under a free name, and return its new path in the index."""
        folder = self.state / "damaged"
        folder.mkdir(parents=True, exist_ok=True)
        target, number = folder / source.name, 0
        while os.path.lexists(target):
            number += 1
            target = folder / f"{source.name}.{number}"
        source.rename(target)
        return str(target.relative_to(self.root))

    def _refresh_project(self, project: str, known: Mapping[str, Entry], without: Collection[str]) -> bool:
        folder = self.simple / project
        changed = False
        while True:
            state = self._state(project, without)
            known_entries = {**self.entries(project), **known}
            page, data = self._pages(project, state, known_entries)
            if not (changed := self._write_pages(folder, page, data) or changed):
                return False
            if self._state(project, without) == state and _has_content(folder / JSON_PAGE, data):
                return True

    def _write_pages(self, folder: Path, page: bytes, data: bytes) -> bool:
        """Write the pages that differ, JSON (the cache) first; empty text removes a page."""
        changed = False
        for path, text in ((folder / JSON_PAGE, data), (folder / PAGE, page)):
            if _has_content(path, text):
                continue
            changed = True
            if path.is_dir():
                msg = f"{path} is a directory, but must be a page."
                raise DamagedIndexError(msg, hint="`matrix index check --repair` moves it away.")
            if text:
                write_atomic(path, text)
            else:
                path.unlink(missing_ok=True)
        return changed

    def _refresh_root(self) -> bool:
        changed = False
        while True:
            names = self._paged()
            pages = root_html(names), root_json(names)
            if not (changed := self._write_pages(self.simple, *pages) or changed):
                return False
            if self._paged() == names:
                return True

    def _paged(self) -> list[str]:
        """Return the projects that have a page; the root must not link to others."""
        return [
            name
            for name in self.project_directories()
            if os.path.exists(f"{self.simple}/{name}/{PAGE}")  # noqa: PTH110  ten times faster
        ]

    def _directories(self) -> list[str]:
        if not self.simple.is_dir():
            return []
        names = [entry.name for entry in os.scandir(self.simple) if entry.is_dir()]
        return sorted(name for name in names if not name.startswith(".") and name not in {PAGE, JSON_PAGE})

    def _state(self, project: str, without: Collection[str] = ()) -> _State:
        """Return the inputs of a project's pages, except the content of its wheels."""
        names = self.wheel_names(project)
        if without:
            names = [name for name in names if name not in without]
        yanked = _listdir(self.yanked)
        return names, frozenset(yanked).intersection(names if yanked else ()), self._status(project)

    def _pages(self, project: str, state: _State, known: Mapping[str, Entry]) -> tuple[bytes, bytes]:
        names, yanked, status = state
        entries = []
        for name in names:
            entry = known.get(name)
            if entry is None:
                if not is_wheel(name):
                    continue
                entry = self._entry(project, name)
            reason = self._yank_reason(name) if name in yanked else False
            if entry.yanked != reason:
                entry = msgspec.structs.replace(entry, yanked=reason)
            entries.append(entry)
        if not entries:
            return b"", b""
        return project_html(project, entries, status), project_json(project, entries, status)

    def _yank_reason(self, name: str) -> str | bool:
        return _read(self.yanked / name).decode(errors="replace").strip() or True

    def _entry(self, project: str, name: str) -> Entry:
        path = self.simple / project / name
        return msgspec.structs.replace(entry_of(path), upload_time=upload_time(path))

    def _status(self, project: str) -> Status:
        try:
            return msgspec.json.decode(_read(self.status / project) or b"{}", type=Status)
        except msgspec.DecodeError:
            return ACTIVE

    def _names(self, project: str) -> list[str]:
        return [name for name in self.wheel_names(project) if is_wheel(name)]

    def published(self, project: str) -> Iterator[Published]:
        """Yield a project's wheels with their provenance."""
        for path in self.wheels(project):
            yield Published(path, self.provenance_of(path))

    def find(self, project: str, build_key: str) -> Published | None:
        """Return the wheel that was built under a build key, if there is one."""
        return next(
            (wheel for wheel in self.published(project) if build_key_of(wheel.provenance) == build_key),
            None,
        )

    def next_build_number(self, project: str, version: str) -> int | None:
        """Return the build number for the next wheel of a version; None for the first (PEP 427)."""
        numbers = []
        for path in self.wheels(project):
            _, wheel_version, build, _ = parse_wheel_filename(path.name)
            if str(wheel_version) == version:
                numbers.append(build[0] if build else 0)
        return max(numbers) + 1 if numbers else None

    def publish(self, wheel: Path, provenance: Mapping[str, Any]) -> Path:
        """Copy a wheel into the index and list it on its pages.

        A crash leaves the index with or without the wheel, never with part of it; the next `refresh`
        repairs a page that a crash left outdated.

        Parameters
        ----------
        wheel
            The finished wheel.
        provenance
            What the wheel was built from; its hash and size are added.

        Returns
        -------
        Path
            The wheel in the index.

        Raises
        ------
        MatrixError
            The file is not a wheel, or the index has a wheel of that name with other content.
        """
        try:
            name = canonicalize_name(parse_wheel_filename(wheel.name)[0])
        except InvalidWheelFilename as error:
            raise MatrixError(str(error)) from None
        target = self.simple / name / wheel.name
        entry = entry_of(wheel)
        digest = entry.hashes.sha256
        record = {
            **provenance,
            "sha256": digest,
            "size": entry.size,
            "requires_python": entry.requires_python,
        }
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        record_path = self.provenance / f"{target.name}.{digest[:16]}.json"
        taken = target.exists()
        if not taken:
            with temporary_sibling(target) as temporary:
                shutil.copyfile(wheel, temporary)
                flush(temporary)
                write_atomic(record_path, text)
                taken = not link_exclusively(temporary, target)
        if taken and sha256_of(target) != digest:
            record_path.unlink(missing_ok=True)
            msg = f"{target.name} is already in the index {self.root} with different content."
            raise NameTakenError(msg, hint="A published wheel is never replaced; a rebuild gets a build tag.")
        self.refresh(name, {target.name: msgspec.structs.replace(entry, upload_time=upload_time(target))})
        return target

    def provenance_of(self, wheel: Path) -> dict[str, Any]:
        """Return the provenance of a wheel; of several records (after a lost race), the one with its hash."""
        if not wheel.is_file():
            return {}
        records = [record for path in self.record_paths(wheel) if (record := _read_record(path))]
        records = [record for record in records if record.get("size") == wheel.stat().st_size]
        if len(records) > 1:
            digest = sha256_of(wheel)
            records = [record for record in records if record.get("sha256") == digest]
        return records[0] if records else {}

    def record_paths(self, wheel: Path) -> list[Path]:
        """Return the files with provenance of wheels of this name."""
        return sorted(self.provenance.glob(f"{glob.escape(wheel.name)}.*.json"))


def _listdir(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208  three times faster than Path.iterdir
    except (FileNotFoundError, NotADirectoryError):
        return []


def _has_content(path: Path, text: bytes) -> bool:
    """Return whether a file has exactly this content; a missing file counts as empty.

    Compared in chunks: with thousands of wheels, memory for a whole page costs more than reading it.
    """
    try:
        with path.open("rb", buffering=0) as source:
            if os.fstat(source.fileno()).st_size != len(text):
                return False
            at = 0
            while chunk := source.read(_CHUNK):
                if not text.startswith(chunk, at):
                    return False
                at += len(chunk)
            return at == len(text)
    except (FileNotFoundError, NotADirectoryError):
        return not text
    except IsADirectoryError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return b""


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def build_key_of(document: Mapping[str, Any]) -> str:
    """Return the build key of a provenance document; empty if it has none."""
    value: object = document
    for key in ("predicate", "buildDefinition", "internalParameters", "buildKey"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""
