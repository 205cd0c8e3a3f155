"""Time and memory of auditing a large wheel; prints JSON.

The wheel contains one shared object with plain offload bundles, deflated like any wheel. GPU code inflates to
about five times its compressed size, and the audit reads all of it. The code is generated with that entropy;
``--object FILE`` uses the bundles of a real shared object instead. The benchmark runs the whole command
several times, in turn with a bare interpreter that only inflates and hashes the same wheel. The ratio shows
the cost of the audit itself.

``python -m benchmarks.audit [--megabytes 500] [--object FILE] [--packed]``
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import sys
import tempfile
import zipfile
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from elftools.elf.elffile import ELFFile
from wheel.wheelfile import WheelFile

from benchmarks import programs
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 3
TARGETS = ("gfx90a", "gfx942")
UNIT = 1 << 20  # bytes of one generated code object
BARE = """
import hashlib, sys, zipfile
with open(sys.argv[1], "rb") as file:
    hashlib.file_digest(file, "sha256")
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in archive.namelist():
        digest = hashlib.sha256()
        with archive.open(name) as member:
            while data := member.read(1 << 20):
                digest.update(data)
"""
LAUNCH = """
import json, os, sys, time
started = time.perf_counter()
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
wall = time.perf_counter() - started
cpu = usage.ru_utime + usage.ru_stime
print()
print(json.dumps([os.waitstatus_to_exitcode(status), wall, cpu, usage.ru_maxrss / 1024]), end="")
"""


def like_code(seed: int) -> bytes:
    """Return bytes that compress like GPU code, to about a fifth: a few frequent words, many rare ones."""
    chance = random.Random(seed)  # noqa: S311  not for secrets
    words = [chance.randbytes(8) for _ in range(4096)]
    often = [1 / (1 + number) ** 1.3 for number in range(len(words))]
    phrases = [b"".join(chance.choices(words, often, k=6)) for _ in range(2048)]
    return b"".join(chance.choices(phrases, k=UNIT // 48))


def made_up(*, compressed: bool) -> list[bytes]:
    """Return bundles of two architectures each."""
    bundles = []
    for number in range(8):
        entries = [
            (PREFIX + target, code_object(target) + like_code(2 * number + at))
            for at, target in enumerate(TARGETS)
        ]
        whole = plain([HOST, *entries])
        bundles.append(
            padded(packed(whole, 3, method=1, payload=zstd.compress(whole)) if compressed else whole)
        )
    return bundles


def taken_from(path: Path) -> list[bytes]:
    """Return the GPU code section of a real shared object."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".hip_fatbin")
        if section is None:
            sys.exit(f"{path} contains no GPU code")
        return [padded(section.data())]


def shared_object(bundles: list[bytes], size: int) -> Iterator[bytes]:
    """Yield a shared object with a GPU code section of about that size."""
    names = b"\0.shstrtab\0.hip_fatbin\0"
    code, written = [], 4096
    for bundle in cycle(bundles):
        if written >= size:
            break
        code.append(bundle)
        written += len(bundle)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, written + 64, 0, 64, 56, 0, 64, 3, 1)
    yield head.ljust(4096, b"\0")
    yield from code
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, written, len(names), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 11, 1, 2, 0, 4096, written - 4096, 0, 0, 4096, 0)
    yield names.ljust(64, b"\0") + sections


def write(directory: Path, bundles: list[bytes], megabytes: int) -> Path:
    """Write a wheel of about that many megabytes."""
    probe = directory / "probe.zip"
    with zipfile.ZipFile(probe, "w", zipfile.ZIP_DEFLATED) as sink:
        sink.writestr("probe", b"".join(bundles))
    ratio = sum(map(len, bundles)) / probe.stat().st_size
    size = int(megabytes * 1_000_000 * ratio)
    wheel = directory / "large-1.0-cp311-cp311-linux_x86_64.whl"
    raw = directory / "large.so"
    with raw.open("wb") as file:
        file.writelines(shared_object(bundles, size))
    with WheelFile(str(wheel), "w", zipfile.ZIP_DEFLATED) as sink:
        sink.write(str(raw), "large/_C.so")
        info = "large-1.0.dist-info"
        sink.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: large\nVersion: 1.0\n")
        tag = "cp311-cp311-linux_x86_64"
        sink.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
    raw.unlink()
    return wheel


def measured(command: list[str]) -> tuple[float, float, float, str]:
    """Run a command; return its wall and CPU seconds, peak MiB and output.

    A small separate process starts it, because the peak of a child includes the memory of its parent.
    """
    out, _, measures = programs.run([sys.executable, "-c", LAUNCH, *command]).rpartition("\n")
    code, wall, cpu, memory = json.loads(measures)
    programs.check(command, code, out)
    return wall, cpu, memory, out


def main() -> None:
    """Write the wheel, audit it several times, and print the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--object", type=Path)
    parser.add_argument(
        "--packed", action="store_true", help="bundles compressed with zstd, as hipcc writes them"
    )
    args = parser.parse_args()
    bundles = taken_from(args.object) if args.object else made_up(compressed=args.packed)
    with tempfile.TemporaryDirectory() as directory:
        wheel = write(Path(directory), bundles, args.megabytes)
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        audit = [sys.executable, "-m", "matrix", "check", str(wheel), "--format", "json"]
        runs: dict[str, list[tuple[float, float, float]]] = {"audit": [], "bare": []}
        output = ""
        for _ in range(RUNS):
            wall, cpu, memory, output = measured(audit)
            runs["audit"].append((wall, cpu, memory))
            wall, cpu, memory, _ = measured([sys.executable, "-c", BARE, str(wheel)])
            runs["bare"].append((wall, cpu, memory))
        report: dict[str, object] = {
            "megabytes": round(wheel.stat().st_size / 1e6),
            "unpacked megabytes": round(unpacked / 1e6),
            "code objects": json.loads(output)["things"][0]["wheels"][0]["code_objects"],
        }
    for name, all_runs in runs.items():
        walls, cpus, memories = zip(*all_runs, strict=True)
        report[name] = {
            "seconds": round(statistics.median(walls), 2),
            "fastest": round(min(walls), 2),
            "processor seconds": round(statistics.median(cpus), 2),
            "peak MiB": round(max(memories)),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
