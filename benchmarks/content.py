"""What the reader of wheels finds in wheels whose use of GPUs is known; prints JSON.

Both stages run over ``tests/builders/data/compiled_wheels.toml`` on the public index, with range requests:
the first as before a wheel is chosen, the second on all objects of wheels that are not too large. The cost
includes the request for the directory that every compiled wheel needs.

The exit code is 1 if a wheel that needs no GPU is rejected, or if a wheel that requires CUDA passes the
second stage.

``python -m benchmarks.content [--largest 300] [--stage start|complete|both] [--held-out]
[NAME...]``
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from builders.gpu import may_be_compiled
from builders.gpu.content import read_complete, read_start
from builders.index_client import IndexClient
from builders.network.transport import SHORT_TAIL, Transport, received
from builders.network.urls import public_index
from resolver.indexes import Content, File

DATA = Path(__file__).resolve().parent.parent / "tests" / "builders" / "data" / "compiled_wheels.toml"
Label = Literal["cpu", "cuda", "cuda+cpu", "rocm", "fat"]


class Labelled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the data."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    label: Label
    source: str
    extended: bool = False
    held_out: bool = False
    note: str = ""


class Counting(Transport):
    """Connections that count the requests."""

    requests = 0

    def get(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  passed on
        """Count a request, and send it."""
        self.requests += 1
        return super().get(*args, **options)


class Result(msgspec.Struct):
    """What one stage found in one wheel."""

    name: str
    label: Label
    content: Content | None
    requests: int = 0
    bytes: int = 0
    seconds: float = 0

    @property
    def finding(self) -> str:
        """The kind of content in one word."""
        content = self.content
        if content is None:
            return "nothing compiled"
        if content.cuda == "required":
            return "cuda"
        if content.rocm or content.gfx:
            return "rocm"
        if content.unread:
            return "not judged"
        if content.cuda == "optional":
            return "cuda+cpu"
        return "not judged" if content.unseen else "cpu"


def labelled() -> list[Labelled]:
    """Return the rows of the data."""
    return msgspec.convert(tomllib.loads(DATA.read_text())["wheel"], list[Labelled])


def offered(row: Labelled, client: IndexClient) -> File:
    """Return the file of a row on the index."""
    project = client.project(row.name)
    files = (file for release in project.releases for file in release.files) if project else ()
    return next(file for file in files if file.sha256 == row.sha256)


def start(file: File, client: IndexClient, transport: Transport) -> Content | None:
    """Read a wheel as before it is chosen."""
    if not may_be_compiled(file, client.metadata([file])):
        return None
    remote = transport.remote_file(file.url, SHORT_TAIL)
    assert remote is not None
    return read_start(file.name, cast("BinaryIO", io.BufferedReader(remote)), remote.expect)


def complete(file: File, _: IndexClient, transport: Transport) -> Content | None:
    """Read all of a wheel that may matter."""
    remote = transport.remote_file(file.url, SHORT_TAIL)
    assert remote is not None
    return read_complete(Path(file.name), cast("BinaryIO", io.BufferedReader(remote)), remote.expect)


def run(
    rows: Sequence[Labelled],
    client: IndexClient,
    read: Callable[[File, IndexClient, Transport], Content | None],
) -> Iterator[Result]:
    """Read all wheels, one after another."""
    for row in rows:
        file = offered(row, client)
        client.metadata([file])  # the resolver has read it before
        transport = Counting((), {})
        before, started = received(), time.perf_counter()
        content = read(file, client, transport)
        seconds = round(time.perf_counter() - started, 2)
        yield Result(row.name, row.label, content, transport.requests, received() - before, seconds)
        print(f"{row.name}: {row.label}, {content}", file=sys.stderr)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return recall and precision of what a stage rejects for CUDA and recognizes as ROCm, and the cost."""
    suspicious = [one for one in results if one.requests > 1]
    opened = [one for one in results if one.requests]
    return {
        "wheels": len(results),
        "rejected because CUDA is required": scores(results, {"cuda"}, {"cuda"}),
        "recognized as ROCm": scores(results, {"rocm"}, {"rocm", "fat"}),
        "recognized as optional CUDA": scores(results, {"cuda+cpu"}, {"cuda+cpu"}),
        "not judged": [one.name for one in results if one.content and one.content.unread],
        "not judged, no other preferred": [
            one.name for one in results if one.content and one.content.unseen and not one.content.unread
        ],
        "requests": statistics.median(one.requests for one in opened),
        "most requests": max(one.requests for one in opened),
        "megabytes, all": round(statistics.median(one.bytes for one in opened) / 1e6, 2),
        "megabytes, suspicious": round(statistics.median(one.bytes for one in suspicious) / 1e6, 2),
        "most megabytes": round(max(one.bytes for one in opened) / 1e6, 2),
    }


def scores(results: Sequence[Result], found: set[str], labels: set[str]) -> dict[str, Any]:
    """Return recall and precision of a finding, with the wheels that are missed or wrong."""
    right = [one.name for one in results if one.finding in found and one.label in labels]
    missed = [
        f"{one.name}: {one.finding}" for one in results if one.label in labels and one.name not in right
    ]
    wrong = [
        f"{one.name}: {one.label}" for one in results if one.finding in found and one.label not in labels
    ]
    return {
        "recall": f"{len(right)}/{len(right) + len(missed)}",
        "precision": f"{len(right)}/{len(right) + len(wrong)}",
        "missed": missed,
        "wrong": wrong,
    }


def main() -> int:
    """Measure, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--largest", type=float, default=300, help="MB of a wheel that is read completely")
    parser.add_argument("--stage", choices=("start", "complete", "both"), default="both")
    parser.add_argument(
        "--held-out", action="store_true", help="the wheels that the rules were not written with"
    )
    args = parser.parse_args()
    rows = [row for row in labelled() if row.held_out == args.held_out]
    rows = [row for row in rows if not args.names or row.name in args.names]
    small = [row for row in rows if row.size <= args.largest * 1e6]
    document: dict[str, Any] = {}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        client = IndexClient([public_index()], cache=Path(folder))
        if args.stage != "complete":
            results = [*run(rows, client, start)]
            document["before a wheel is chosen"] = summary(results)
            failed = any(one.label == "cpu" and one.finding in {"cuda", "rocm"} for one in results)
        if args.stage != "start":
            results = [*run(small, client, complete)]
            document["completely"] = {
                "not read": [row.name for row in rows if row not in small],
                **summary(results),
            }
            failed |= any(one.label == "cpu" and one.finding in {"cuda", "rocm"} for one in results)
            failed |= any(one.label == "cuda" and one.finding != "cuda" for one in results)
    print(json.dumps(document, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
