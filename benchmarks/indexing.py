"""Time publishing to an index and serving it, compared with other programs; print JSON.

The wheels are tiny, so that the times are those of the index and not of the disk. Times are in seconds, the
smallest of several runs.
"""

from __future__ import annotations

import http.client
import json
import shutil
import sys
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import programs
from builders.index import Index
from builders.storage.files import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable

LABEL = "rocm6.4.torch2.9.1.gfx90a"
_SERVE = "import sys; from matrix.cli import main; sys.exit(main())"
_REQUESTS = 1000
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


def port_in(line: str) -> int:
    """Return the port in the line that a server prints first."""
    return int(line.rpartition(":")[2].partition("/")[0].split()[0]) if "://" in line else int(line)


def rate(port: int, path: str, *, keep: bool) -> float:
    """Return the requests per second of one client."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    start = time.perf_counter()
    for _ in range(_REQUESTS):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == http.client.OK
        answer.read()
        if not keep:
            connection.close()
    return _REQUESTS / (time.perf_counter() - start)


def serving(work: Path) -> dict[str, object]:
    """Compare the server with Python's own on a small page, and on a file of 256 MiB."""
    index = Index(work / "served")
    index.publish(make_wheel(work / "more", "tiny", "1.0"), {})
    big = index.simple / "tiny" / f"tiny-2.0+{LABEL}-py3-none-any.whl"
    with big.open("wb") as file:
        file.truncate(256 * 2**20)
    stock = (
        "import functools, http.server as h\n"
        "class Quiet(h.SimpleHTTPRequestHandler):\n"
        "    def log_message(self, *_): pass\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), Quiet)\n"
        "print(s.server_port, flush=True)\n"
        "s.serve_forever()\n"
    )
    own = [sys.executable, "-c", _SERVE, "index", "serve", "--port", "0", "--index", str(index.root)]
    results: dict[str, object] = {}
    for name, command in {"matrix index serve": own, "http.server": [sys.executable, "-c", stock]}.items():
        with programs.started(command, index.root) as line:
            port = port_in(line)
            results[name] = {
                "pages a second, one connection each": max(
                    rate(port, "/simple/tiny/", keep=False) for _ in range(_RUNS)
                ),
                "pages a second, connection kept": max(
                    rate(port, "/simple/tiny/", keep=True) for _ in range(_RUNS)
                ),
                "seconds for 256 MiB": min(
                    seconds(partial(download, port, f"/simple/tiny/{big.name.replace('+', '%2B')}"))
                    for _ in range(_RUNS)
                ),
            }
    return results


def download(port: int, path: str) -> None:
    """Read a file and discard it."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == http.client.OK
    while answer.read(2**20):
        pass
    connection.close()


def main() -> None:
    """Run all measurements, and print the results."""
    work = Path(tempfile.mkdtemp(prefix="matrix-bench-"))
    try:
        document = {"schema": 1, "publishing": publishing(work), "serving": serving(work)}
    finally:
        shutil.rmtree(work)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
