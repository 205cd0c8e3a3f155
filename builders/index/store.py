"""The index directory: publishing into it, and keeping its pages true.

Layout::

    simple/index.html, index.json              the projects
    simple/<project>/index.html, index.json    the project's wheels, with hashes
    simple/<project>/<wheel>
    provenance/<wheel>.<hash>.json             what the wheel with this hash was made from
    .matrix/yanked/<wheel>                     why a wheel is yanked (PEP 592)
    .matrix/status/<project>                   what its keepers say of a project (PEP 792)
    .matrix/                                   logs and build directories besides

A wheel is published at the moment its file takes its final name, which only one publisher can
give it. Its provenance is there before that, and every page can be made again from the files.
Links are relative, so the directory can be moved, bound into a container, or served by any web
server. Publishers need no lock, which shared file systems often cannot give: each one writes pages
until they say what the directory holds, so the last one always leaves them right.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.files import (
    finish,
    place_exclusively,
    sha256_of,
    temporary_beside,
    write_atomic,
)
from builders.index.entries import entry_of, is_wheel, upload_time
from builders.index.pages import (
    ACTIVE,
    JSON_PAGE,
    PAGE,
    Entry,
    Status,
    known_files,
    project_html,
    project_json,
    root_html,
    root_json,
)
from builders.provenance import build_key_of
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


_PIECE = 1 << 18  # bytes
_State = tuple[list[str], frozenset[str], Status]
"""File names of a project's wheels, those that are yanked, and what is said of the project."""


@dataclass(frozen=True, slots=True)
class Published:
    """A wheel in the index."""

    path: Path
    provenance: Mapping[str, Any]


class NameTakenError(MatrixError):
    """The index holds another wheel under this name."""

    id: ClassVar[str] = "name-taken"


class Index:
    """An index directory; it need not exist yet.

    Parameters
    ----------
    root
        The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.simple = self.root / "simple"
        self.state = self.root / ".matrix"
        self.yanked = self.state / "yanked"
        self.status = self.state / "status"
        self.provenance = self.root / "provenance"

    def projects(self) -> list[str]:
        """Give the normalised names of all projects that have wheels."""
        if not self.simple.is_dir():
            return []
        return sorted(one.name for one in os.scandir(self.simple) if one.is_dir() and self._names(one.name))

    def wheels(self, project: str) -> list[Path]:
        """Give a project's wheels, sorted by file name."""
        project = canonicalize_name(project)
        return [self.simple / project / name for name in self._names(project)]

    def published(self, project: str) -> Iterator[Published]:
        """Yield a project's wheels with their provenance (empty where there is none)."""
        for path in self.wheels(project):
            yield Published(path, self.provenance_of(path))

    def find(self, project: str, build_key: str) -> Published | None:
        """Find the wheel that was built under a build key."""
        return next(
            (one for one in self.published(project) if build_key_of(one.provenance) == build_key),
            None,
        )

    def next_build_number(self, project: str, version: str) -> int | None:
        """Give the build tag for another wheel of a version, None for the first (PEP 427)."""
        numbers = []
        for path in self.wheels(project):
            _, found, build, _ = parse_wheel_filename(path.name)
            if str(found) == version:
                numbers.append(build[0] if build else 0)
        return max(numbers) + 1 if numbers else None

    def publish(self, wheel: Path, provenance: Mapping[str, Any]) -> Path:
        """Put a wheel into the index and make its pages say so.

        A crash at any point leaves the index without the wheel, or with it; a page that a crash
        left behind its directory is mended by the next `refresh`.

        Parameters
        ----------
        wheel
            The finished wheel.
        provenance
            What it was made from; its hash and size are added.

        Returns
        -------
        Path
            The wheel in the index.

        Raises
        ------
        MatrixError
            The file is no wheel, or a wheel of that name with other content is already there.
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
        said = self.provenance / f"{target.name}.{digest[:16]}.json"
        taken = target.exists()
        if not taken:
            with temporary_beside(target) as temporary:
                shutil.copyfile(wheel, temporary)
                finish(temporary)
                write_atomic(said, text)
                taken = not place_exclusively(temporary, target)
        if taken and sha256_of(target) != digest:
            said.unlink(missing_ok=True)
            msg = f"{target.name} is already in the index {self.root} with other content."
            raise NameTakenError(msg, hint="A rebuild gets a build tag; a wheel is never replaced.")
        self.refresh(name, {target.name: msgspec.structs.replace(entry, upload_time=upload_time(target))})
        return target

    def refresh(
        self,
        project: str,
        known: Mapping[str, Entry] | None = None,
        *,
        without: Collection[str] = (),
    ) -> bool:
        """Write the pages of a project, and of the root, until they agree with the files.

        Two writers may cross, and the slower one put an older page over a newer. So each looks again
        after it wrote: the last look of all is taken after the last wheel came and the last page was
        written, and finds what is wrong.

        Parameters
        ----------
        known
            What is known of some wheels besides what the page remembers, by file name.
        without
            File names that are to be left out, though they are still there.

        Returns
        -------
        bool
            Whether anything had to be written.

        Raises
        ------
        MatrixError
            A file that is called a wheel is none.
        """
        project = canonicalize_name(project)
        changed = self._refresh_project(project, known or {}, without)
        return self._refresh_root() or changed

    def refresh_all(self) -> list[str]:
        """Write every page that does not say what is there; give the projects that had one.

        Raises
        ------
        MatrixError
            A file that is called a wheel is none.
        """
        if not self.simple.is_dir():
            return []
        names = sorted(one.name for one in os.scandir(self.simple) if one.is_dir())
        changed = [name for name in names if self._refresh_project(name, {}, ())]
        self._refresh_root()
        return changed

    def project_pages(self, project: str, known: Mapping[str, Entry]) -> tuple[bytes, bytes]:
        """Make a project's pages of what is known of its wheels: HTML and JSON; empty without any.

        Parameters
        ----------
        known
            The wheels to list, by file name; what else lies there is left out.
        """
        names, yanked, status = self._state(project)
        listed = [name for name in names if name in known]
        return self._pages(project, (listed, yanked, status), known)

    def root_pages(self) -> tuple[bytes, bytes]:
        """Make the pages that list the projects: HTML and JSON."""
        names = self._paged()
        return root_html(names), root_json(names)

    def provenance_of(self, wheel: Path) -> dict[str, Any]:
        """Give the record of a wheel; of several under its name (a lost race) the one of its hash."""
        records = [record for path in self.record_paths(wheel) if (record := _read_record(path))]
        records = [record for record in records if record.get("size") == wheel.stat().st_size]
        if len(records) > 1:
            digest = sha256_of(wheel)
            records = [record for record in records if record.get("sha256") == digest]
        return records[0] if records else {}

    def record_paths(self, wheel: Path) -> list[Path]:
        """Give the files in which provenance of wheels of this name stands."""
        return sorted(self.provenance.glob(f"{glob.escape(wheel.name)}.*.json"))

    def _refresh_project(self, project: str, known: Mapping[str, Entry], without: Collection[str]) -> bool:
        folder = self.simple / project
        changed = False
        while True:
            state = self._state(project, without)
            remembered = {**known_files(_read(folder / JSON_PAGE)), **known}
            page, data = self._pages(project, state, remembered)
            if not (changed := self._write_pages(folder, page, data) or changed):
                return False
            if self._state(project, without) == state and _says(folder / JSON_PAGE, data):
                return True

    def _write_pages(self, folder: Path, page: bytes, data: bytes) -> bool:
        """Write what differs; a project without wheels has no pages. JSON first: it is the memory."""
        changed = False
        for path, text in ((folder / JSON_PAGE, data), (folder / PAGE, page)):
            if _says(path, text):
                continue
            changed = True
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
        """Give the projects that have a page, so that the root never leads to none."""
        if not self.simple.is_dir():
            return []
        return sorted(
            one.name
            for one in os.scandir(self.simple)
            if one.is_dir() and os.path.exists(f"{one.path}/{PAGE}")  # noqa: PTH110  ten times the speed
        )

    def _state(self, project: str, without: Collection[str] = ()) -> _State:
        """Give all that a project's pages are made from, but for the content of its wheels."""
        names = self._listed(project)
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
            reason = self._why_yanked(name) if name in yanked else False
            if entry.yanked != reason:
                entry = msgspec.structs.replace(entry, yanked=reason)
            entries.append(entry)
        if not entries:
            return b"", b""
        return project_html(project, entries, status), project_json(project, entries, status)

    def _why_yanked(self, name: str) -> str | bool:
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
        return [name for name in self._listed(project) if is_wheel(name)]

    def _listed(self, project: str) -> list[str]:
        """Give what looks like a wheel; to look closer at each takes long where there are thousands."""
        listed = _listdir(self.simple / project)
        return sorted([name for name in listed if name.endswith(".whl") and not name.startswith(".")])


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _listdir(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208  three times the speed of Path.iterdir
    except (FileNotFoundError, NotADirectoryError):
        return []


def _says(path: Path, text: bytes) -> bool:
    """Tell whether a file says just this; one that is not there says nothing.

    A piece at a time: with thousands of wheels the memory for a whole page costs more than reading it.
    """
    try:
        with path.open("rb", buffering=0) as source:
            if os.fstat(source.fileno()).st_size != len(text):
                return False
            at = 0
            while piece := source.read(_PIECE):
                if not text.startswith(piece, at):
                    return False
                at += len(piece)
            return at == len(text)
    except (FileNotFoundError, NotADirectoryError):
        return not text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
