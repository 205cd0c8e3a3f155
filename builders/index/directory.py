"""The directory of an index: its wheels, and the pages that list them, kept true.

Layout::

    simple/index.html, index.json              the projects
    simple/<project>/index.html, index.json    the project's wheels, with hashes
    simple/<project>/<wheel>
    provenance/<wheel>.<hash>.json             what the wheel with this hash was made from
    .matrix/yanked/<wheel>                     why a wheel is yanked (PEP 592)
    .matrix/status/<project>                   what its keepers say of a project (PEP 792)
    .matrix/damaged/                           what was taken out, for whoever wants to look
    .matrix/                                   logs and build directories besides

Links are relative, so the directory can be moved, bound into a container, or served by any web
server. Every page can be made again from the files. Writers need no lock, which shared file systems
often cannot give: each one writes pages until they say what the directory holds, so the last one
always leaves them right.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

from builders.files import write_atomic
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
from resolver.errors import DamagedIndexError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_PIECE = 1 << 18  # bytes
_State = tuple[list[str], frozenset[str], Status]
"""File names of a project's wheels, those that are yanked, and what is said of the project."""


class Directory:
    """Wheels and their pages; the directory need not exist yet.

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
        return [name for name in self.folders() if self._names(name)]

    def folders(self) -> list[str]:
        """Give the normalised names that have a folder, whatever is in it."""
        return [name for name in self._all_folders() if name == canonicalize_name(name)]

    def misnamed_folders(self) -> list[str]:
        """Give the folders that no reader looks into, since their names are not normalised."""
        return [name for name in self._all_folders() if name != canonicalize_name(name)]

    def wheels(self, project: str) -> list[Path]:
        """Give a project's wheels, sorted by file name."""
        project = canonicalize_name(project)
        return [self.simple / project / name for name in self._names(project)]

    def listed(self, project: str) -> list[str]:
        """Give what looks like a wheel; to look closer at each takes long where there are thousands."""
        listed = _listdir(self.simple / project)
        return sorted([name for name in listed if name.endswith(".whl") and not name.startswith(".")])

    def remembered(self, project: str) -> Mapping[str, Entry]:
        """Give what the page of a project says of its wheels, by file name; nothing without a page."""
        return known_files(_read(self.simple / project / JSON_PAGE))

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

        Folders without a normalised name get none: no reader looks there.

        Raises
        ------
        MatrixError
            A file that is called a wheel is none.
        """
        if not self.simple.is_dir():
            return []
        changed = [name for name in self.folders() if self._refresh_project(name, {}, ())]
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

    def put_aside(self, source: Path) -> str:
        """Move a file to where damaged ones are kept, over none of them; give its place in the index."""
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
            remembered = {**self.remembered(project), **known}
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
            if path.is_dir():
                msg = f"{path} is a directory, and a page should stand there."
                raise DamagedIndexError(msg, hint="matrix index check --repair puts it aside.")
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
        return [
            name
            for name in self.folders()
            if os.path.exists(f"{self.simple}/{name}/{PAGE}")  # noqa: PTH110  ten times the speed
        ]

    def _all_folders(self) -> list[str]:
        if not self.simple.is_dir():
            return []
        names = [one.name for one in os.scandir(self.simple) if one.is_dir()]
        return sorted(name for name in names if not name.startswith(".") and name not in {PAGE, JSON_PAGE})

    def _state(self, project: str, without: Collection[str] = ()) -> _State:
        """Give all that a project's pages are made from, but for the content of its wheels."""
        names = self.listed(project)
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
        return [name for name in self.listed(project) if is_wheel(name)]


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
    except IsADirectoryError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return b""
