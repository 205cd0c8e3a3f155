"""Time publishing to an index; print JSON.

The wheels are tiny, so that the times are those of the index and not of the disk. Times are in seconds, the
smallest of several runs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.index import Index
from builders.storage.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable

LABEL = "rocm6.4.torch2.9.1.gfx90a"
_RUNS = 3


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a small wheel without a RECORD, which an index does not read."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", "x = 1\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.9\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return wheel


def fill(index: Index, projects: int, versions: int) -> None:
    """Write wheels and their records into the directories of an index, without pages."""
    index.provenance.mkdir(parents=True)
    for project in range(projects):
        for number in range(versions):
            wheel = make_wheel(index.simple / f"pkg{project}", f"pkg{project}", f"{number}.0+{LABEL}")
            (index.provenance / f"{wheel.name}.{sha256_of(wheel)[:16]}.json").write_text("{}")


def seconds(do: Callable[[], object]) -> float:
    """Time a call."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def publishing(work: Path) -> dict[str, float]:
    """Time writing all pages, checking correct pages, and adding one wheel."""
    times: dict[str, float] = {}
    index = Index(work / "thousand")
    fill(index, 100, 10)
    times["1000 wheels from nothing"] = seconds(index.refresh_all)
    times["1000 wheels unchanged"] = min(seconds(index.refresh_all) for _ in range(_RUNS))
    for projects in (100, 1):
        index = Index(work / f"tenthousand{projects}")
        fill(index, projects, 10_000 // projects)
        index.refresh_all()
        wheels = [make_wheel(work / "more", "pkg0", f"9999{run}.0+{LABEL}") for run in range(_RUNS)]
        added = min(seconds(partial(index.publish, wheel, {})) for wheel in wheels)
        times[f"one wheel added to 10000 of {projects} project{'s' * (projects > 1)}"] = added
    return times


def main() -> None:
    """Run all measurements, and print the results."""
    work = Path(tempfile.mkdtemp(prefix="matrix-bench-"))
    try:
        document = {"schema": 1, "publishing": publishing(work)}
    finally:
        shutil.rmtree(work)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
