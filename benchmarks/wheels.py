"""Time and peak memory of labelling a large wheel; prints JSON.

The wheel is generated: shared objects of bytes that compress like GPU code (about five to one), with a
RECORD, packed as setuptools packs. Labelling runs in a separate process, whose peak memory is read. For
comparison, a bare loop of zlib and SHA-256 reads the same wheel once. With ``--library``, the wheel library's
own command also writes the wheel again (``wheel tags``, which writes no label).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from benchmarks import programs

MIB = 1 << 20
OBJECT = 50 * MIB
LABEL = """
import json, resource, sys, time
from pathlib import Path
from builders.wheels.labelling import Labels, label_wheel, runtime_pins
labels = Labels(
    version="1.0+rocm6.4.torch2.9.1.gfx90a",
    platform="manylinux_2_39_x86_64",
    pins=runtime_pins("2.9.1+rocm6.4"),
    sboms={"rocm-matrix.cdx.json": b"{}"},
)
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
started = time.perf_counter()
label_wheel(Path(sys.argv[1]), labels, Path(sys.argv[2]))
seconds = time.perf_counter() - started
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "seconds": round(seconds, 2),
    "cpu seconds": round(usage.ru_utime + usage.ru_stime, 2),
    "peak MiB": round(peak() / 1024),
    "of it before MiB": round(before / 1024),
}))
"""

LIBRARY = """
import json, sys, time
from wheel._commands import main
sys.argv[1:1] = ["tags", "--platform-tag", "manylinux_2_39_x86_64"]
started = time.perf_counter()
main()
seconds = time.perf_counter() - started
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": round(seconds, 2), "peak MiB": round(peak / 1024)}))
"""


def code(seed: int, size: int) -> bytes:
    """Return bytes that compress like code objects: repeated and random words."""
    chance = random.Random(seed)  # noqa: S311  not for secrets
    words = [chance.randbytes(8) for _ in range(64)]
    block = b"".join(
        chance.choice(words) if chance.random() < 0.98 else chance.randbytes(8)  # noqa: PLR2004
        for _ in range(MIB // 8)
    )
    return b"".join(block[shift:] + block[:shift] for shift in range(size // MIB))


def make_wheel(directory: Path, megabytes: int) -> Path:
    """Write a wheel of about that many MiB."""
    wheel = directory / "large-1.0-cp312-cp312-linux_x86_64.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, data: bytes) -> None:
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append(f"{name},sha256={digest},{len(data)}\n")

        number = 0
        while wheel.stat().st_size < megabytes * MIB:
            put(f"large/_kernels_{number}.so", code(number, OBJECT))
            number += 1
        put("large-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: large\nVersion: 1.0\n")
        tags = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n"
        put("large-1.0.dist-info/WHEEL", tags)
        record = "large-1.0.dist-info/RECORD"
        archive.writestr(record, "".join([*rows, f"{record},,\n"]))
    return wheel


def floor(wheel: Path) -> float:
    """Time inflating and hashing every member once."""
    started = time.perf_counter()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            digest = hashlib.sha256()
            with archive.open(info) as source:
                while data := source.read(MIB):
                    digest.update(data)
    return time.perf_counter() - started


def by_the_library(wheel: Path) -> dict[str, float]:
    """Time ``wheel tags``, which rewrites the wheel under another platform tag."""
    output = programs.run([sys.executable, "-c", LIBRARY, str(wheel)])
    return dict(json.loads(output.splitlines()[-1]))


def main() -> None:
    """Write the wheel, label it, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the wheel file")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--library", action="store_true", help="time the wheel library, too (minutes)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        wheel = make_wheel(Path(directory), args.megabytes)
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        runs = []
        for _ in range(args.runs):
            command = [sys.executable, "-c", LABEL, str(wheel), str(Path(directory) / "out")]
            runs.append(json.loads(programs.run(command)))
        report: dict[str, object] = {
            "wheel MiB": round(wheel.stat().st_size / MIB),
            "unpacked MiB": round(unpacked / MIB),
            "label": min(runs, key=lambda one: one["seconds"]),
            "zlib and SHA-256 alone": {"seconds": round(min(floor(wheel) for _ in range(args.runs)), 2)},
        }
        if args.library:
            report["wheel tags"] = by_the_library(wheel)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
