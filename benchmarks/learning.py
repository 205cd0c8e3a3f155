"""Bytes that learning from 100 wheels on a server reads; prints JSON.

The wheels are of three kinds that indexes have: wheels without compiled code but with data, wheels whose
objects are stored, and wheels whose objects are deflated. The format allows a reader to skip irrelevant data
in the first two kinds. A deflated object must be read as a whole: its GPU code is somewhere inside.

``python -m benchmarks.learning [--wheels 100]``
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
import time
import zipfile
from pathlib import Path

from benchmarks import programs
from builders.index_client import IndexClient
from builders.learning.wheel import learn_published
from builders.storage.files import sha256_of
from resolver.facts import schema
from resolver.facts.catalog import load
from resolver.indexes import File
from tests.builders.bundles import HOST, PREFIX, code_object, plain
from tests.support.range_server import serving

_DATA = 3_000_000  # bytes of a wheel that are not relevant
_CODE = 1_000_000  # bytes of the code for one GPU architecture
_GFX = ("gfx90a", "gfx942", "gfx1030")
_KINDS = {"no objects": 4, "stored objects": 4, "deflated objects": 2}
"""Kinds of wheels, and the number of each kind in ten wheels."""


def compiled_object(folder: Path) -> bytes:
    """Compile a shared object with GPU code that does not deflate well."""
    entries = [(PREFIX + name, code_object(name) + os.urandom(_CODE)) for name in _GFX]
    (folder / "code").write_bytes(plain([HOST, *entries]))
    section = '.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12'
    source = (
        f'__asm__("{section}\\n.incbin \\"{folder}/code\\"\\n.text");\nint answer(void) {{ return 42; }}\n'
    )
    (folder / "op.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", "op.so", "op.c"]
    programs.run(command, cwd=folder)
    return (folder / "op.so").read_bytes()


def write_wheel(folder: Path, number: int, kind: str, compiled: bytes) -> Path:
    """Write one wheel of a kind."""
    path = folder / f"project{number}-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    method = zipfile.ZIP_DEFLATED if kind == "deflated objects" else zipfile.ZIP_STORED
    metadata = f"Metadata-Version: 2.1\nName: project{number}\nVersion: 1.0\nRequires-Dist: torch>=2.4\n"
    with zipfile.ZipFile(path, "w", method) as archive:
        if kind == "no objects":
            archive.writestr("project/data.bin", os.urandom(_DATA))
        else:
            archive.writestr("project/op.so", compiled)
        archive.writestr(f"project{number}-1.0.dist-info/METADATA", metadata)
    return path


def measure(folder: Path, wheels: int) -> dict[str, dict[str, float]]:
    """Return for each kind the number of wheels, their bytes, the bytes and percent read, and the seconds."""
    catalog = load()
    compiled = compiled_object(folder)
    kinds = [kind for kind, share in _KINDS.items() for _ in range(share)]
    totals = {kind: {"wheels": 0, "bytes": 0, "read": 0, "seconds": 0.0} for kind in _KINDS}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    with serving(folder) as server:
        transport = IndexClient([server.url]).transport
        for number in range(wheels):
            kind = kinds[number % len(kinds)]
            path = write_wheel(folder, number, kind, compiled)
            file = File(name=path.name, url=f"{server.url}/{path.name}", sha256=sha256_of(path))
            before, started = server.sent, time.perf_counter()
            learned = learn_published(file, catalog, transport, today)
            total = totals[kind]
            total["seconds"] += time.perf_counter() - started
            total["wheels"] += 1
            total["bytes"] += path.stat().st_size
            total["read"] += server.sent - before
            gfx = [
                row.versions for row in learned.rows if isinstance(row, schema.Requires) and row.on == "gfx"
            ]
            if gfx != ([tuple(sorted(_GFX))] if kind != "no objects" else []):
                msg = f"{path.name}: learned {gfx}"
                raise ValueError(msg)
            path.unlink()
    for total in totals.values():
        total["percent"] = round(100 * total["read"] / total["bytes"], 1)
        total["seconds"] = round(total["seconds"], 2)
    return totals


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=int, default=100)
    wheels = parser.parse_args().wheels
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), wheels), indent=2))


if __name__ == "__main__":
    main()
