"""The index: a static simple repository (PEP 503) on disk, the one place of finished wheels.

Layout under the index directory::

    simple/index.html               the projects
    simple/<project>/index.html     the project's wheels, with hashes
    simple/<project>/<wheel>
    provenance/<wheel>.<hash>.json  what the wheel with this hash was made from
    .matrix/                        logs and build directories

A wheel is published at the moment its file takes its final name, which only one publisher can
give it. Its provenance is there before that, and every page can be made again from the files.
Links are relative, so the directory can be moved, bound into a container, or served by any web
server. Publishers need no lock: each one writes pages until they say what the directory holds, so
the last one always leaves them right.
"""

from __future__ import annotations

import glob
import html
import json
import shutil
import zipfile
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.files import (
    TEMPORARY_PREFIX,
    finish,
    place_exclusively,
    sha256_of,
    temporary_beside,
    write_atomic,
)
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PAGE = """<!DOCTYPE html>
<html>
<head>
<meta name="pypi:repository-version" content="1.0">
<title>{title}</title>
</head>
<body>
{links}
</body>
</html>
"""


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
        self._provenance_directory = self.root / "provenance"

    def projects(self) -> list[str]:
        """Give the normalised names of all projects that have wheels."""
        if not self.simple.is_dir():
            return []
        return sorted(one.name for one in self.simple.iterdir() if one.is_dir() and self.wheels(one.name))

    def wheels(self, project: str) -> list[Path]:
        """Give a project's wheels, sorted by file name."""
        directory = self.simple / canonicalize_name(project)
        if not directory.is_dir():
            return []
        return sorted(
            path
            for path in directory.iterdir()
            if not path.name.startswith(TEMPORARY_PREFIX) and _is_wheel(path.name)
        )

    def published(self, project: str) -> Iterator[Published]:
        """Yield a project's wheels with their provenance (empty where there is none)."""
        for path in self.wheels(project):
            yield Published(path, self._provenance(path))

    def find(self, project: str, build_key: str) -> Published | None:
        """Find the wheel that was built under a build key."""
        return next(
            (one for one in self.published(project) if one.provenance.get("build_key") == build_key),
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
        digest, size = sha256_of(wheel), wheel.stat().st_size
        record = {**provenance, "sha256": digest, "size": size, "requires_python": _requires_python(wheel)}
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        said = self._provenance_directory / f"{target.name}.{digest[:16]}.json"
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
        self.refresh(name)
        return target

    def refresh(self, project: str) -> bool:
        """Write the pages of a project, and of the root, until they agree with the files.

        Returns
        -------
        bool
            Whether anything had to be written.
        """
        changed = False
        project = canonicalize_name(project)
        page = self.simple / project / "index.html"
        while (text := self._project_page(project)) != _read(page):
            write_atomic(page, text)
            changed = True
        root = self.simple / "index.html"
        while (text := self._root_page()) != _read(root):
            write_atomic(root, text)
            changed = True
        return changed

    def _project_page(self, project: str) -> str:
        links = []
        for path in self.wheels(project):
            record = self._provenance(path)
            digest = record.get("sha256") or sha256_of(path)
            requires = record.get("requires_python", "") if record else _requires_python(path)
            attribute = f' data-requires-python="{html.escape(requires)}"' if requires else ""
            href = f"{quote(path.name)}#sha256={digest}"
            links.append(f'<a href="{href}"{attribute}>{html.escape(path.name)}</a><br>')
        return _PAGE.format(title=f"Links for {project}", links="\n".join(links))

    def _root_page(self) -> str:
        links = [f'<a href="{name}/">{name}</a><br>' for name in self.projects()]
        return _PAGE.format(title="Simple index", links="\n".join(links))

    def _provenance(self, wheel: Path) -> dict[str, Any]:
        """Give the record of a wheel; of several under its name (a lost race) the one of its hash."""
        paths = sorted(self._provenance_directory.glob(f"{glob.escape(wheel.name)}.*.json"))
        records = [record for path in paths if isinstance(record := _read_json(path), dict)]
        records = [record for record in records if record.get("size") == wheel.stat().st_size]
        if len(records) > 1:
            digest = sha256_of(wheel)
            records = [record for record in records if record.get("sha256") == digest]
        return records[0] if records else {}


def _is_wheel(name: str) -> bool:
    try:
        parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    return True


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _requires_python(wheel: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = archive.read(name)
    except (zipfile.BadZipFile, StopIteration):
        msg = f"{wheel.name} is no wheel: it has no metadata that can be read."
        raise MatrixError(msg) from None
    return str(BytesHeaderParser().parsebytes(metadata).get("Requires-Python", ""))
