"""Publishing into an index, and finding what was published.

A wheel is published at the moment its file takes its final name, which only one publisher can
give it. Its provenance is there before that, and its pages are made right after.
"""

from __future__ import annotations

import glob
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.files import (
    finish,
    link_exclusively,
    sha256_of,
    temporary_sibling,
    write_atomic,
)
from builders.index.directory import Directory
from builders.index.entries import entry_of, upload_time
from builders.provenance import build_key_of
from resolver.errors import MatrixError, NameTakenError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Published:
    """A wheel in the index."""

    path: Path
    provenance: Mapping[str, Any]


class Index(Directory):
    """Published wheels with their provenance; the directory need not exist yet.

    Parameters
    ----------
    root
        The directory.
    """

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
            with temporary_sibling(target) as temporary:
                shutil.copyfile(wheel, temporary)
                finish(temporary)
                write_atomic(said, text)
                taken = not link_exclusively(temporary, target)
        if taken and sha256_of(target) != digest:
            said.unlink(missing_ok=True)
            msg = f"{target.name} is already in the index {self.root} with other content."
            raise NameTakenError(msg, hint="A rebuild gets a build tag; a wheel is never replaced.")
        self.refresh(name, {target.name: msgspec.structs.replace(entry, upload_time=upload_time(target))})
        return target

    def provenance_of(self, wheel: Path) -> dict[str, Any]:
        """Give the record of a wheel; of several under its name (a lost race) the one of its hash."""
        if not wheel.is_file():
            return {}
        records = [record for path in self.record_paths(wheel) if (record := _read_record(path))]
        records = [record for record in records if record.get("size") == wheel.stat().st_size]
        if len(records) > 1:
            digest = sha256_of(wheel)
            records = [record for record in records if record.get("sha256") == digest]
        return records[0] if records else {}

    def record_paths(self, wheel: Path) -> list[Path]:
        """Give the files in which provenance of wheels of this name stands."""
        return sorted(self.provenance.glob(f"{glob.escape(wheel.name)}.*.json"))


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
